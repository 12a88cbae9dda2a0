#include "snug/plan/search/front.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/plan/random_graph.h"

namespace snug::plan {
namespace {

MemoryPlan plan_of(Bytes peak, double seconds) {
  MemoryPlan plan;
  plan.predicted_peak = peak;
  plan.predicted_seconds = seconds;
  return plan;
}

std::vector<std::pair<Bytes, double>> figures(const std::vector<MemoryPlan>& plans) {
  std::vector<std::pair<Bytes, double>> all;
  for (const MemoryPlan& plan : plans) all.emplace_back(plan.predicted_peak, plan.predicted_seconds);
  return all;
}

TEST(Front, IsJoinedByWhatIsWorthHaving) {
  std::vector<MemoryPlan> front{plan_of(30, 1), plan_of(20, 2), plan_of(10, 3)};
  const auto before = front;
  EXPECT_FALSE(join(front, plan_of(20, 2))) << "no better";
  EXPECT_FALSE(join(front, plan_of(25, 2))) << "as fast with less";
  EXPECT_FALSE(join(front, plan_of(40, 1.5)));
  EXPECT_EQ(front, before);
  EXPECT_TRUE(join(front, plan_of(25, 1.5)));
  EXPECT_TRUE(join(front, plan_of(5, 4)));
  EXPECT_TRUE(join(front, plan_of(40, 0.5)));
  EXPECT_EQ(figures(front),
            (std::vector<std::pair<Bytes, double>>{{40, 0.5}, {30, 1}, {25, 1.5}, {20, 2}, {10, 3}, {5, 4}}));
}

TEST(Front, LosesWhatAPlanMakesUseless) {
  std::vector<MemoryPlan> front{plan_of(30, 1), plan_of(20, 2), plan_of(10, 3)};
  EXPECT_TRUE(join(front, plan_of(20, 1.5))) << "faster at the same peak";
  EXPECT_EQ(figures(front), (std::vector<std::pair<Bytes, double>>{{30, 1}, {20, 1.5}, {10, 3}}));
  EXPECT_TRUE(join(front, plan_of(10, 1))) << "as fast as the fastest";
  EXPECT_EQ(figures(front), (std::vector<std::pair<Bytes, double>>{{10, 1}}));
}

TEST(Front, IsTheSameWhetherPlansJoinOrAreSorted) {
  synthetic::Dice dice(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<MemoryPlan> all, joined;
    for (int i = 0; i < 40; ++i) {
      const Bytes peak = dice.roll(12);
      const double seconds = dice.roll(12);
      all.push_back(plan_of(peak, seconds));
      join(joined, all.back());
      ASSERT_EQ(figures(joined), figures(front_of(all)));
    }
  }
}

}  // namespace
}  // namespace snug::plan
