#include "snug/plan/annealing.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "snug/plan/presets.h"
#include "snug/plan/simulator.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

/// Convolutions with a norm and a shortcut around each pair, whose sizes halve: pieces that differ, as in a ResNet.
StepGraph residual_net() {
  synthetic::GraphBuilder b(8_MiB);
  std::vector<std::vector<ValueId>> saved;
  ValueId x = b.leaf();
  const ValueId weight = b.leaf();
  Bytes size = 8_MiB;
  double last = 0;
  for (int block = 0; block < 8; ++block) {
    if (block > 0 && block % 3 == 0) size /= 2;
    const double conv = 4.0 + block % 3;
    const ValueId a = b.op("conv", {x, weight}, size, conv), n = b.op("norm", {a}, size, 0.5);
    const ValueId r = b.op("relu", {n}, size, 0.3), c = b.op("conv", {r, weight}, size, conv);
    const ValueId m = b.op("norm", {c}, size, 0.5), s = b.op("add", {m, x}, size, 0.4);
    for (const ValueId v : {x, a, r, c}) {
      if (!b.graph().flow.is_leaf(v)) b.save(v);
    }
    saved.push_back({x, a, r, c});
    for (const ValueId v : {a, n, r, c, m}) b.die(v);
    if (block > 0) b.die(x);
    x = s;
    last += 2 * conv + 1.7;
  }
  const ValueId loss = b.op("loss", {x}, 4_KiB, 0.1);
  b.die(x);
  b.settle();
  for (auto values = saved.rbegin(); values != saved.rend(); ++values) {
    std::erase_if(*values, [&](ValueId v) { return b.graph().flow.is_leaf(v); });
    b.node(*values, 9_MiB);
  }
  b.die(loss);
  b.graph().step_seconds = 3 * last;
  return b.take();
}

class Annealed : public testing::Test {
 protected:
  const StepGraph graph = residual_net();
  const std::vector<MemoryPlan> before = front_of(all_presets(graph));
};

TEST_F(Annealed, IsAFrontWithExactPredictionsAndNowhereWorse) {
  const auto after = with_annealing(graph, before, {400'000});
  for (std::size_t i = 0; i < after.size(); ++i) {
    const Simulation run = simulate(graph, after[i]);
    EXPECT_EQ(run.peak, after[i].predicted_peak);
    EXPECT_EQ(run.seconds, after[i].predicted_seconds);
    if (i == 0) continue;
    EXPECT_LT(after[i].predicted_peak, after[i - 1].predicted_peak);
    EXPECT_GT(after[i].predicted_seconds, after[i - 1].predicted_seconds);
  }
  for (const MemoryPlan& old : before) {
    const auto fits = std::ranges::find_if(
        after, [&](const MemoryPlan& plan) { return plan.predicted_peak <= old.predicted_peak; });
    ASSERT_NE(fits, after.end());
    EXPECT_LE(fits->predicted_seconds, old.predicted_seconds);
  }
}

TEST_F(Annealed, FindsPlansThatNoPresetIs) {
  const auto after = with_annealing(graph, before, {400'000});
  // At the lowest peak that a preset reaches, a good part of its extra time is saved.
  const double preset = before.back().predicted_seconds - graph.step_seconds;
  const auto fits = std::ranges::find_if(
      after, [&](const MemoryPlan& plan) { return plan.predicted_peak <= before.back().predicted_peak; });
  EXPECT_LT(fits->predicted_seconds - graph.step_seconds, 0.8 * preset);
}

TEST_F(Annealed, IsTheSameEachTime) {
  EXPECT_EQ(with_annealing(graph, before, {100'000}), with_annealing(graph, before, {100'000}));
}

TEST_F(Annealed, SpendsNothingWhereNothingCanBeGained) {
  // One plan, and no effort: as it was.
  EXPECT_EQ(with_annealing(graph, {before.front()}, {400'000}), std::vector{before.front()});
  EXPECT_EQ(with_annealing(graph, before, {0}), before);
}

}  // namespace
}  // namespace snug::plan
