#include "snug/replay/new_steps.h"

#include <gtest/gtest.h>

namespace snug::replay {
namespace {

plan::StepGraph graph(int operators) {
  plan::StepGraph graph;
  graph.ops.resize(static_cast<std::size_t>(operators));
  return graph;
}

TEST(NewSteps, AreGivenAPlanWhenTheyComeTheSecondTime) {
  NewSteps steps;
  EXPECT_FALSE(steps.ran(1, graph(10)));
  EXPECT_FALSE(steps.ran(2, std::nullopt));
  EXPECT_EQ(steps.ran(1, std::nullopt).value().ops.size(), 10U) << "the graph of the first time is kept";
  EXPECT_EQ(steps.ran(2, graph(20)).value().ops.size(), 20U) << "or the second time is profiled";
}

TEST(NewSteps, AreNotProfiledWhereNoneComesAgain) {
  NewSteps steps;
  std::uint64_t key = 0;
  int profiled = 0;
  for (int i = 0; i < 100; ++i) {
    const bool profiles = steps.profiles();
    profiled += profiles;
    EXPECT_FALSE(steps.ran(++key, profiles ? std::optional(graph(10)) : std::nullopt));
  }
  EXPECT_EQ(profiled, 8);
  EXPECT_FALSE(steps.profiles());
  EXPECT_FALSE(steps.ran(50, std::nullopt)) << "it was not profiled";
  EXPECT_TRUE(steps.profiles()) << "as steps come again";
  EXPECT_TRUE(steps.ran(50, graph(10)));
}

TEST(NewSteps, AreNotPlannedWherePlansAreNeverFollowed) {
  NewSteps steps;
  int planned = 0;
  for (std::uint64_t key = 0; key < 100; ++key) {  // each comes twice, and never again
    (void)steps.ran(key, steps.profiles() ? std::optional(graph(10)) : std::nullopt);
    planned += steps.ran(key, steps.profiles() ? std::optional(graph(10)) : std::nullopt).has_value();
  }
  EXPECT_EQ(planned, 16);
  EXPECT_FALSE(steps.profiles());
  steps.followed();
  EXPECT_TRUE(steps.profiles()) << "as one of them came a third time";
}

TEST(NewSteps, ForgetGraphsOfStepsThatCameLongAgo) {
  NewSteps steps;
  EXPECT_FALSE(steps.ran(1, graph(200'000)));
  EXPECT_FALSE(steps.ran(2, graph(100'000)));
  EXPECT_FALSE(steps.ran(1, std::nullopt)) << "which would take too much memory";
  EXPECT_TRUE(steps.ran(2, std::nullopt));
  EXPECT_TRUE(steps.ran(1, graph(10)));
}

}  // namespace
}  // namespace snug::replay
