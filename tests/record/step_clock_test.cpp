#include "snug/record/step_clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace snug::record {
namespace {

void pass(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

TEST(StepClock, CountsWhatIsTheStepsOwn) {
  StepClock clock(c10::kCPU);
  std::vector<StepClock::Moment> at{clock.now()};
  for (int i = 0; i < 4; ++i) {
    pass(10);
    at.push_back(clock.now());
  }
  clock.leave_out(at[1], at[3]);
  clock.leave_out(at[2], at[3]);  // within the other
  clock.settle();
  const double first = clock.seconds(at[0], at[1]), last = clock.seconds(at[3], at[4]);
  EXPECT_GE(first, 0.01);
  EXPECT_GE(last, 0.01);
  EXPECT_EQ(clock.seconds(at[1], at[2]), 0);
  EXPECT_EQ(clock.seconds(at[2], at[3]), 0);
  EXPECT_NEAR(clock.seconds(at[0], at[4]), first + last, 1e-9);
  EXPECT_EQ(clock.seconds(at[4], at[0]), 0) << "backwards";
  EXPECT_GE(clock.seconds(0, at[4]), clock.seconds(at[0], at[4])) << "it begins when it is made";
}

TEST(StepClock, LeavesOutTimesThatOverlapOnce) {
  StepClock clock(c10::kCPU);
  std::vector<StepClock::Moment> at;
  for (int i = 0; i < 5; ++i) {
    at.push_back(clock.now());
    pass(5);
  }
  clock.leave_out(at[2], at[4]);
  clock.leave_out(at[1], at[3]);  // noted later, begun before
  clock.settle();
  EXPECT_NEAR(clock.seconds(at[0], at[4]), clock.seconds(at[0], at[1]), 1e-9);
  EXPECT_EQ(clock.seconds(at[1], at[4]), 0);
}

}  // namespace
}  // namespace snug::record
