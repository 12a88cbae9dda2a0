#include "snug/plan/run/window_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace snug::plan {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Forward and backward through layers of 100 bytes, one second each way, which the end of the step updates.
StreamedStep layers(int count) {
  StreamedStep step;
  double at = 0;
  using Does = StreamedUse::Does;
  const auto use = [&](StreamedId tensor, Does does) { step.uses.push_back({{tensor, does}, at++}); };
  for (StreamedId i = 0; i < count; ++i) {
    step.places.push_back(100);
    use(i, Does::Reads);
  }
  for (StreamedId i = count - 1; i >= 0; --i) use(i, Does::Writes);
  step.seconds = at;
  step.at_once = 100;
  return step;
}

MoveCost copies(double seconds_per_copy, bool overlap) {
  return {.out_seconds_per_byte = seconds_per_copy / 100,
          .in_seconds_per_byte = seconds_per_copy / 100,
          .overlaps = overlap,
          .budget = {}};
}

TEST(WindowCost, OfAWindowForAllIsNothing) {
  const WindowCost cost = window_cost(layers(8), {.bytes = 800}, copies(0.5, true));
  EXPECT_EQ(cost.in, 0);
  EXPECT_EQ(cost.out, 0);
  EXPECT_THAT(cost.seconds, DoubleNear(0, 1e-9));
}

TEST(WindowCost, WhereCopiesDoNotOverlapIsTheirTime) {
  const WindowCost cost = window_cost(layers(8), {.bytes = 300}, copies(0.5, false));
  // At each end of the step those stay that were used last.
  EXPECT_EQ(cost.in, 2 * 500);
  EXPECT_EQ(cost.out, 8 * 100 - 300 + 300);
  EXPECT_THAT(cost.seconds, DoubleNear(0.5 * static_cast<double>(cost.in + cost.out) / 100, 1e-9));
}

TEST(WindowCost, QuickCopiesHideBehindTheStepWhereTheyRotate) {
  const Window on_demand{.bytes = 300}, ahead{.bytes = 300, .rotating = 300};
  const MoveCost quick = copies(0.4, true);
  EXPECT_THAT(window_cost(layers(8), ahead, quick).seconds, DoubleNear(0, 1e-9));
  EXPECT_GT(window_cost(layers(8), on_demand, quick).seconds, 3);
  EXPECT_EQ(cheapest_window(layers(8), 300, quick).rotating, 300);
}

TEST(WindowCost, SlowCopiesTakeWhatTheLinkTakes) {
  const WindowCost cost = window_cost(layers(8), {.bytes = 300, .rotating = 300}, copies(3, true));
  EXPECT_GE(cost.seconds + 16, 3 * static_cast<double>(cost.in) / 100);
  EXPECT_LE(cost.seconds, 3 * static_cast<double>(cost.in + cost.out) / 100);
}

TEST(WindowCost, OfALargerWindowIsLess) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 50; ++trial) {
    const auto pick = [&](int least, int most) { return std::uniform_int_distribution(least, most)(random); };
    const StreamedStep step = layers(pick(3, 12));
    const MoveCost link = copies(0.1 * pick(1, 30), pick(0, 1) == 0);
    double before = window_cost(step, cheapest_window(step, 100, link), link).seconds;
    for (Bytes bytes = 200; bytes <= 1200; bytes += 100) {
      const double seconds = window_cost(step, cheapest_window(step, bytes, link), link).seconds;
      EXPECT_LE(seconds, before + 3.0) << bytes;  // one copy, at the most
      before = std::min(before, seconds);
    }
    EXPECT_THAT(before, DoubleNear(0, 1e-9));
  }
}

TEST(WindowCost, WhatIsMadeStaysUntilItIsUsedWhereThereIsRoom) {
  using Does = StreamedUse::Does;
  // Two gradients and two weights; the update follows.
  const StreamedStep step{.places = {100, 100, 100, 100},
                          .uses = {{{0}, 0},
                                   {{1}, 1},
                                   {{3, Does::Makes}, 2},
                                   {{2, Does::Makes}, 3},
                                   {{0, Does::Writes}, 4},
                                   {{2}, 4},
                                   {{1, Does::Writes}, 5},
                                   {{3}, 5}},
                          .seconds = 6,
                          .at_once = 200};
  const WindowCost all = window_cost(step, {.bytes = 400}, copies(1, false));
  EXPECT_EQ(all.in, 0);
  EXPECT_EQ(all.out, 0);
  const WindowCost half = window_cost(step, {.bytes = 200}, copies(1, false));
  EXPECT_EQ(half.out, 300) << "both weights, and one gradient; the other is used, and gone";
  EXPECT_THAT(half.seconds, DoubleNear(static_cast<double>(half.in + half.out) / 100, 1e-9));
}

TEST(WindowCost, TheProcessorsPartIsTheSteps) {
  MoveCost link = copies(0.1, true);
  link.own_in_seconds_per_byte = 0.02;
  const Window window{.bytes = 300, .rotating = 300};
  const WindowCost cost = window_cost(layers(8), window, link);
  EXPECT_THAT(cost.seconds, DoubleNear(0.02 * static_cast<double>(cost.in), 0.5));
}

TEST(WindowSizes, GoFromWhatIsUsedAtOnceToAll) {
  const std::vector<Bytes> sizes = window_sizes(layers(8), 10'000);
  EXPECT_EQ(sizes.front(), 100);
  EXPECT_EQ(sizes.back(), 800);
  EXPECT_EQ(window_sizes(layers(8), 450).back(), 450);
  EXPECT_THAT(window_sizes(layers(8), 100), ElementsAre(100));
  EXPECT_THAT(window_sizes(layers(8), 99), IsEmpty());
}

}  // namespace
}  // namespace snug::plan
