#include "snug/memory/alarms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "snug/base/errors.h"

namespace snug::memory {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

StepEnd end_of(std::int64_t step, Bytes allocated, Bytes others = 0) {
  StepEnd end{.step = step, .memory = {}};
  end.memory.allocated = end.memory.shares.tensors = allocated;
  end.memory.resident = 1_GiB;
  end.memory.anonymous = allocated + others;
  end.memory.device = {.total = 100_GiB, .available = 50_GiB};
  return end;
}

/// The messages of so many steps, whose memory is a function of their number.
std::vector<std::string> told(const AlarmRules& rules, std::int64_t steps,
                              const std::function<StepEnd(std::int64_t)>& of) {
  Alarms alarms(rules);
  std::vector<std::string> messages;
  for (std::int64_t i = 0; i < steps; ++i) {
    for (const Alarm& alarm : alarms.after(of(i))) messages.push_back(alarm.message);
  }
  return messages;
}

TEST(Alarms, TellOfMemoryThatGrowsAllTheWhile) {
  const auto leak = [](std::int64_t i) { return end_of(i, 100_MiB + i * 1_MiB); };
  EXPECT_THAT(told({}, 40, leak), IsEmpty()) << "one step too few";
  EXPECT_THAT(told({}, 41, leak),
              ElementsAre(HasSubstr("step 40: what tensors take grew by 39.0 MiB over 39 steps, all "
                                    "the while")));
  EXPECT_EQ(told({}, 400, leak).size(), 1) << "once for as long as it lasts";
  const auto again = [](std::int64_t i) { return end_of(i, 100_MiB + (i < 50 ? i : i < 150 ? 50 : i - 100) * 1_MiB); };
  EXPECT_EQ(told({}, 400, again).size(), 2) << "and again when it has stopped between";
  // Every third step alone, and with batches of different sizes.
  EXPECT_EQ(told({}, 41, [](std::int64_t i) { return end_of(i, 100_MiB + i / 3 * 3_MiB); }).size(), 1);
  EXPECT_EQ(told({}, 41, [](std::int64_t i) { return end_of(i, 100_MiB + i * 1_MiB + i % 2 * 3_MiB); }).size(), 1);
}

TEST(Alarms, TellOfWhatIsNoTensor) {
  EXPECT_THAT(told({}, 41, [](std::int64_t i) { return end_of(i, 100_MiB, i * 1_MiB); }),
              ElementsAre(HasSubstr("the process's memory beyond what tensors have grew by 39.0 MiB")));
}

TEST(Alarms, TellNothingOfWhatComesOnceOrGoesAgain) {
  for (const std::int64_t when : {0, 5, 10, 20, 30, 39}) {
    EXPECT_THAT(told({}, 100, [&](std::int64_t i) { return end_of(i, i < when ? 10_MiB : 50_MiB); }), IsEmpty())
        << when;
  }
  EXPECT_THAT(told({}, 200, [](std::int64_t i) { return end_of(i, 10_MiB + i % 7 * 5_MiB); }), IsEmpty());
  EXPECT_THAT(told({}, 200, [](std::int64_t i) { return end_of(i, 10_MiB + i); }), IsEmpty()) << "a few bytes";
  EXPECT_THAT(told({.growth_steps = 0}, 200, [](std::int64_t i) { return end_of(i, i * 1_MiB); }), IsEmpty()) << "off";
}

TEST(Alarms, TellOnceThatLittleIsFreeForAsLongAsItIs) {
  const auto low = [](std::int64_t i) {
    StepEnd end = end_of(i, 1_MiB);
    end.memory.device.available = i == 3 ? 7_GiB : i == 5 ? 6_GiB : 4_GiB;
    return end;
  };
  EXPECT_THAT(
      told({}, 8, low),
      ElementsAre(HasSubstr("step 0: 4.0 GiB of the device's 100.0 GiB are free, less than 5 %"), HasSubstr("step 4")));
  EXPECT_THAT(told({.headroom = 0.01}, 8, low), IsEmpty());
  EXPECT_THAT(told({}, 6, [](std::int64_t i) { return StepEnd{.step = i, .memory = {}}; }), IsEmpty())
      << "nobody tells";
}

TEST(Alarms, TellOfALossScaleThatKeepsFalling) {
  const auto scaled = [](const std::vector<double>& scales) {
    return told({}, static_cast<std::int64_t>(scales.size()), [&](std::int64_t i) {
      StepEnd end = end_of(i, 1_MiB);
      end.loss_scale = scales[static_cast<std::size_t>(i)];
      return end;
    });
  };
  std::vector<double> falling;
  for (double scale = 65536; falling.size() < 15; scale /= 2) falling.push_back(scale);
  EXPECT_THAT(scaled(falling), IsEmpty()) << "fourteen falls: it finds its place";
  falling.push_back(2);
  falling.push_back(1);
  EXPECT_THAT(scaled(falling),
              ElementsAre(HasSubstr("step 15: the loss scale keeps falling, to 2 after 15 overflows in a row")));
  EXPECT_THAT(scaled({4, 2, 2, 1, 1, 0.5, 0.25, 0.25, 0.125}), ElementsAre(HasSubstr("step 5"), HasSubstr("step 8")))
      << "below one at once, and again when it has stayed between";
}

TEST(Alarms, RefuseRulesThatCannotBe) {
  EXPECT_THAT([] { Alarms({.headroom = 1}); }, ThrowsMessage<UsageError>(HasSubstr("a headroom of 1;")));
  EXPECT_THAT([] { Alarms({.headroom = std::numeric_limits<double>::quiet_NaN()}); },
              ThrowsMessage<UsageError>(HasSubstr("a headroom of nan")));
  EXPECT_THAT([] { Alarms({.growth_steps = -1}); }, ThrowsMessage<UsageError>(HasSubstr("growth over -1 steps")));
  EXPECT_THAT([] { Alarms({.growth_bytes = -1}); }, ThrowsMessage<UsageError>(HasSubstr("growth of -1 bytes")));
  EXPECT_THAT([] { Alarms({.falling_scale = -1}); }, ThrowsMessage<UsageError>(HasSubstr("-1 falls")));
}

}  // namespace
}  // namespace snug::memory
