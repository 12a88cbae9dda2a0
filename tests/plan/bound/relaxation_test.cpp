#include "snug/plan/bound/relaxation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "snug/plan/bound/unavoidable.h"
#include "snug/plan/run/simulator.h"
#include "tests/plan/random_graph.h"

namespace snug::plan {
namespace {

/// Seconds and bytes of running `replayed` again, from the definition; infinite when it leaves something out.
struct Cost {
  double seconds = 0, bytes = 0;
};
Cost cost_of(const StepGraph& graph, const Moment& moment, const std::vector<char>& replayed) {
  Cost cost;
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    const OpId op = graph.flow.producer(v);
    if (graph.flow.is_leaf(v) || moment.free[at(v)] || op >= moment.ops) continue;
    bool needed = moment.saved[at(v)] != 0;
    for (OpId reader = 0; reader < moment.ops; ++reader) {
      const auto inputs = graph.flow.inputs(reader);
      needed = needed || (replayed[at(reader)] && std::ranges::find(inputs, v) != inputs.end());
    }
    if (!needed || replayed[at(op)]) continue;
    cost.bytes +=
        moment.lost[at(v)] ? std::numeric_limits<double>::infinity() : static_cast<double>(graph.values[at(v)].bytes);
  }
  for (OpId op = 0; op < moment.ops; ++op) cost.seconds += replayed[at(op)] ? graph.ops[at(op)].seconds : 0;
  return cost;
}

TEST(Relaxation, IsTheBestOfAllChoicesAtEveryPrice) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StepGraph graph = synthetic::random_graph(seed, 8);
    const std::size_t event = graph.settle_event() + seed % 5;
    const Moment moment(graph, event);
    const Relaxation relaxation(graph, moment);
    for (const double price : {0.0, 1e-7, 1e-6, 1e-5, 1e-4}) {
      double best = std::numeric_limits<double>::infinity();
      for (unsigned mask = 0; mask < 1U << graph.ops.size(); ++mask) {
        std::vector<char> replayed(graph.ops.size());
        for (std::size_t op = 0; op < replayed.size(); ++op) replayed[op] = mask >> op & 1U;
        const Cost cost = cost_of(graph, moment, replayed);
        // Nothing is worth what has been overwritten.
        if (std::isfinite(cost.bytes)) best = std::min(best, cost.seconds + price * cost.bytes);
      }
      const RelaxedChoice choice = relaxation.best(price);
      const Cost found = cost_of(graph, moment, choice.replayed);
      ASSERT_NEAR(found.seconds + price * found.bytes, best, 1e-6 * std::max(1.0, best)) << "price " << price;
      ASSERT_EQ(choice.seconds, found.seconds);
    }
  }
}

TEST(Relaxation, BoundsTheSecondsOfEveryChoiceWithinSomeBytes) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StepGraph graph = synthetic::random_graph(seed, 7);
    const Moment moment(graph, graph.settle_event());
    const Relaxation relaxation(graph, moment);
    for (unsigned mask = 0; mask < 1U << graph.ops.size(); ++mask) {
      std::vector<char> replayed(graph.ops.size());
      for (std::size_t op = 0; op < replayed.size(); ++op) replayed[op] = mask >> op & 1U;
      const Cost cost = cost_of(graph, moment, replayed);
      if (!std::isfinite(cost.bytes) || mask % 7 != 0) continue;
      ASSERT_LE(relaxation.least_seconds(cost.bytes).seconds, cost.seconds + 1e-9);
    }
    EXPECT_EQ(relaxation.least_seconds(-1).seconds, std::numeric_limits<double>::infinity());
  }
}

TEST(Relaxation, HasAHullFromEverythingThereToEverythingMadeAgain) {
  const StepGraph graph = synthetic::gpt_like({.blocks = 6});
  const Relaxation relaxation(graph, Moment(graph, graph.settle_event()));
  const auto hull = relaxation.hull(40);
  ASSERT_GT(hull.size(), 5U);
  EXPECT_EQ(hull.front().seconds, 0);
  EXPECT_EQ(hull.back().weight, 0);
  for (std::size_t i = 1; i < hull.size(); ++i) {
    EXPECT_LT(hull[i].weight, hull[i - 1].weight);
    EXPECT_GT(hull[i].seconds, hull[i - 1].seconds);
  }
  // A plan of a choice takes what the choice says, where replays do not interfere.
  MemoryPlan plan;
  plan.actions = relaxation.actions(hull[2]);
  EXPECT_NEAR(simulate(graph, plan).seconds - graph.step_seconds, hull[2].seconds, 1e-9);
}

TEST(UnavoidableBytes, AreNeverMoreThanAPlanTakes) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const StepGraph graph = synthetic::random_graph(seed, 20);
    const std::vector<Bytes> unavoidable = unavoidable_bytes(graph);
    const Simulation run = simulate(graph, synthetic::random_plan(seed * 3 + 1, graph), Detail::Timeline);
    for (std::size_t i = 0; i < graph.events.size(); ++i) {
      ASSERT_LE(unavoidable[i], run.peaks[i]) << "seed " << seed << ", event " << i;
    }
  }
}

}  // namespace
}  // namespace snug::plan
