// What plans do with values: keep, make again, move, also while the step computes, and compress. For small steps beside
// all plans there are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "snug/plan/bound/lower_bound.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/run/staging.h"
#include "snug/plan/search/every_plan.h"
#include "snug/plan/search/front.h"
#include "snug/plan/search/hidden_copies.h"
#include "snug/plan/trade_off.h"
#include "tests/plan/random_graph.h"

namespace snug::plan {
namespace {

/// Does with each value what can be done with it, under each set of ranges that nest: written another way than
/// every_plan().
std::vector<MemoryPlan> plans_by_brute_force(const StepGraph& graph) {
  const OpId ops = graph.flow.ops();
  std::vector<SegmentRange> ranges;
  for (OpId begin = 0; begin < ops; ++begin) {
    for (OpId end = begin + 1; end <= ops; ++end) ranges.push_back({begin, end});
  }
  const auto nest = [](const SegmentRange& a, const SegmentRange& b) {
    return a.end <= b.begin || b.end <= a.begin || (a.begin <= b.begin && b.end <= a.end) ||
           (b.begin <= a.begin && a.end <= b.end);
  };
  std::vector<ValueId> values;
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    if (!graph.flow.is_leaf(v)) values.push_back(v);
  }
  std::vector<MemoryPlan> plans;
  for (std::uint32_t chosen = 0; chosen < 1U << ranges.size(); ++chosen) {
    MemoryPlan plan;
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      if (chosen >> i & 1U) plan.segments.push_back(ranges[i]);
    }
    bool nests = true;
    for (const SegmentRange& a : plan.segments) {
      for (const SegmentRange& b : plan.segments) nests = nests && nest(a, b);
    }
    if (!nests) continue;
    const auto with_actions = [&](const auto& self, std::size_t i) -> void {
      if (i == values.size()) return plans.push_back(predicted(graph, plan));
      const auto v = static_cast<std::size_t>(values[i]);
      const bool may_go = graph.values[v].saved && graph.values[v].bytes > 0;
      std::vector<Action> possible{kKeep, kRecompute};
      if (may_go && graph.moves.host) possible.push_back(kMove);
      if (may_go && graph.moves.disk) possible.push_back(kMoveToDisk);
      for (const Encoding& encoding : graph.values[v].encodings) {
        if (may_go) possible.push_back(compressed(encoding.codec));
      }
      for (const Action action : possible) {
        plan.actions[v] = action;
        self(self, i + 1);
      }
    };
    plan.actions.assign(graph.values.size(), kKeep);
    with_actions(with_actions, 0);
  }
  return plans;
}

/// Copies of all of a step's memory take `price` of its seconds to the host, and half of that back.
MoveCost copies_at(const StepGraph& graph, double price) {
  const double of_all = graph.step_seconds / static_cast<double>(plan_none(graph).predicted_peak + 1);
  return {.out_seconds_per_byte = price * of_all,
          .in_seconds_per_byte = price * of_all / 2,
          .seconds_per_copy = price * graph.step_seconds / 1000,
          .budget = std::nullopt};
}

/// At each peak that is worth having, the plan is as fast as the best of `all`, and no faster than the bound. Calls
/// `seen` for each.
void expect_best_of(const std::vector<MemoryPlan>& all, const StepGraph& graph,
                    const std::function<void(const MemoryPlan&)>& seen) {
  const TradeOff trade_off(graph);
  const std::vector<MemoryPlan> front = front_of(all);
  for (const MemoryPlan& best : front) {
    const MemoryPlan ours = trade_off.best(graph, {best.predicted_peak, 0});
    ASSERT_NEAR(ours.predicted_seconds, best.predicted_seconds, 1e-9);
    ASSERT_LE(lower_bound(graph, best.predicted_peak).step_seconds, best.predicted_seconds * (1 + 1e-12));
    seen(ours);
  }
  ASSERT_EQ(trade_off.floor(), front.back().predicted_peak);
}

/// An accelerator's host; the CPU's host, for which it waits, and its disk; both beside an accelerator.
Moves overlapping_moves(const StepGraph& graph, double price, int which) {
  Moves moves{.host = copies_at(graph, price), .disk = {}};
  moves.host->overlaps = which != 1;
  if (which == 0) return moves;
  moves.disk = copies_at(graph, which == 1 ? price : 3 * price);
  moves.disk->overlaps = true;
  if (which == 1) {
    moves.disk->own_out_seconds_per_byte = moves.disk->out_seconds_per_byte / 10;
    moves.disk->own_in_seconds_per_byte = moves.disk->in_seconds_per_byte / 5;
  }
  return moves;
}

TEST(TradeOff, IsTheBestOfAllPlansWhereMicroBatchesAreInFlight) {
  int graphs = 0, points = 0;
  for (std::uint64_t seed = 0; graphs < 200; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    StepGraph graph = synthetic::random_graph(seed, 2 + static_cast<int>(seed % 3));
    if (graph.flow.values() > 9) continue;
    graph.in_flight = 2 + static_cast<int>(seed % 4);
    ++graphs;
    ASSERT_NO_FATAL_FAILURE(expect_best_of(plans_by_brute_force(graph), graph, [&](const MemoryPlan&) { ++points; }));
  }
  EXPECT_GE(points, 300);
}

TEST(TradeOff, IsTheBestOfAllPlansOfASmallStep) {
  int graphs = 0, points = 0;
  std::size_t plans = 0;
  for (std::uint64_t seed = 0; graphs < 1000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StepGraph graph = synthetic::random_graph(seed, 2 + static_cast<int>(seed % 3));
    if (graph.flow.values() > 9) continue;
    ++graphs;
    const auto all = plans_by_brute_force(graph);
    plans += all.size();
    ASSERT_NO_FATAL_FAILURE(expect_best_of(all, graph, [&](const MemoryPlan&) { ++points; }));
  }
  EXPECT_GT(points, 1100);
  EXPECT_GT(plans, 1'000'000U);
}

TEST(CountPlans, IsTheNumberOfAllPlans) {
  int graphs = 0;
  for (std::uint64_t seed = 0; graphs < 50; ++seed) {
    const StepGraph graph = synthetic::random_graph(seed, 1 + static_cast<int>(seed % 5));
    const std::int64_t count = count_plans(graph, 20'000);
    if (count == 20'000) continue;
    ++graphs;
    EXPECT_EQ(std::ssize(every_plan(graph)), count) << "seed " << seed;
    EXPECT_EQ(count_plans(graph, count), count);
    EXPECT_EQ(count_plans(graph, count - 1), count - 1);
  }
}

TEST(CountPlans, MakesNoneOfThem) {
  for (const int ops : {8, 2'000'000}) {
    synthetic::GraphBuilder g;
    ValueId v = g.leaf();
    for (int i = 0; i < ops; ++i) v = g.op("a", {v}, 1);
    const StepGraph graph = g.take();
    // Nestings of 8 operators alone are 1,095,424: seconds and hundreds of megabytes where they are made.
    EXPECT_EQ(count_plans(graph, 1 << 20), 1 << 20);
  }
  synthetic::GraphBuilder g;
  ValueId v = g.leaf();
  for (int i = 0; i < 8; ++i) v = g.op("a", {v}, 1);
  for (ValueInfo& value : g.graph().values) value.must = Must::Keep;
  EXPECT_EQ(count_plans(g.take(), 1 << 30), 1'095'424);
}

TEST(TradeOff, IsTheBestOfAllPlansThatMoveOrRecompute) {
  int graphs = 0, points = 0, moving = 0, recomputing = 0;
  for (std::uint64_t seed = 0; graphs < 400; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    StepGraph graph = synthetic::random_graph(seed, 2 + static_cast<int>(seed % 3));
    graph.moves.host.emplace();
    if (count_plans(graph, 20'000) >= 20'000) continue;
    ++graphs;
    // From cheap to dear, as seconds of its operators go.
    graph.moves.host = copies_at(graph, std::pow(10.0, static_cast<double>(seed % 7) / 2 - 2));
    const auto seen = [&](const MemoryPlan& ours) {
      ++points;
      moving += std::ranges::find(ours.actions, kMove) != ours.actions.end();
      recomputing += simulate(graph, ours).replayed_ops > 0;
    };
    ASSERT_NO_FATAL_FAILURE(expect_best_of(plans_by_brute_force(graph), graph, seen));
  }
  EXPECT_GT(points, 500);
  EXPECT_GT(moving, 100);
  EXPECT_GT(recomputing, 50);
}

/// A host that is near and has little room, and a disk.
TEST(TradeOff, IsTheBestOfAllPlansThatMoveToTwoHomes) {
  int graphs = 0, points = 0, both = 0;
  for (std::uint64_t seed = 0; graphs < 150; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    StepGraph graph = synthetic::random_graph(seed, 2 + static_cast<int>(seed % 3));
    graph.moves = {.host = MoveCost{.budget = std::nullopt}, .disk = MoveCost{.budget = std::nullopt}};
    if (count_plans(graph, 20'000) >= 20'000) continue;
    ++graphs;
    const double price = std::pow(10.0, static_cast<double>(seed % 7) / 2 - 2);
    graph.moves = {.host = copies_at(graph, price), .disk = copies_at(graph, 1.5 * price)};
    graph.moves.host->budget = 128_KiB;  // a value or two
    std::vector<MemoryPlan> all = plans_by_brute_force(graph);
    std::erase_if(all,
                  [&](const MemoryPlan& plan) { return simulate(graph, plan).host_peak > *graph.moves.host->budget; });
    const auto seen = [&](const MemoryPlan& ours) {
      ++points;
      EXPECT_LE(simulate(graph, ours).host_peak, *graph.moves.host->budget);
      const auto has = [&](Action action) { return std::ranges::find(ours.actions, action) != ours.actions.end(); };
      both += has(kMove) && has(kMoveToDisk);
    };
    ASSERT_NO_FATAL_FAILURE(expect_best_of(all, graph, seen));
  }
  EXPECT_GT(points, 200);
  EXPECT_GE(both, 5);
}

TEST(TradeOff, IsTheBestOfAllPlansThatCompressMoveOrRecompute) {
  int graphs = 0, points = 0, compressing = 0, lossy = 0;
  for (std::uint64_t seed = 0; graphs < 250; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    StepGraph graph = synthetic::random_graph(seed, 2 + static_cast<int>(seed % 3));
    const double price = std::pow(10.0, static_cast<double>(seed % 7) / 2 - 2);
    const MoveCost copies = copies_at(graph, price);
    for (std::size_t v = 0; v < graph.values.size(); ++v) {
      const Bytes bytes = graph.values[v].bytes;
      if ((seed + v) % 3 == 0 || bytes == 0) continue;
      const auto encoding = [&](Codec codec, Bytes share, double slower) {
        return Encoding{.codec = codec,
                        .element = 4,
                        .content_bytes = bytes / share,
                        .bytes = bytes / share,
                        .encode_seconds = slower * copies.out(bytes),
                        .decode_seconds = slower * copies.in(bytes)};
      };
      if (seed % 5 != 1) graph.values[v].encodings.push_back(encoding(v % 2 == 0 ? Codec::Zeros : Codec::Narrow, 2, 1));
      if (seed % 5 <= 1) graph.values[v].encodings.push_back(encoding(Codec::Int4, 7, 1.5));
    }
    if (seed % 2 == 0) graph.moves.host = copies_at(graph, 2 * price);
    if (count_plans(graph, 20'000) >= 20'000) continue;
    ++graphs;
    const auto seen = [&](const MemoryPlan& ours) {
      ++points;
      compressing += std::ranges::any_of(ours.actions, is_compressed);
      lossy += std::ranges::any_of(ours.actions, [](Action action) { return is_lossy(action); });
    };
    ASSERT_NO_FATAL_FAILURE(expect_best_of(plans_by_brute_force(graph), graph, seen));
  }
  EXPECT_GT(points, 300);
  EXPECT_GT(compressing, 60);
  EXPECT_GT(lossy, 20);
}

/// What is compressed comes back when it is asked for, and no sooner: it is in no order of what is fetched ahead.
TEST(TradeOff, SaysOfPlansThatCompressAndHideCopiesWhatTheyTake) {
  int both = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    StepGraph graph = synthetic::gpt_like({.blocks = 4});
    graph.moves = overlapping_moves(graph, 0.2 + 0.1 * static_cast<double>(seed % 4), 0);
    for (std::size_t v = seed % 3; v < graph.values.size(); v += 3) {
      const Bytes bytes = graph.values[v].bytes;
      Encoding bits;
      bits.codec = Codec::Bits;
      bits.content_bytes = bits.bytes = bytes / 8;
      bits.encode_seconds = bits.decode_seconds = 0.05;
      if (graph.values[v].saved && bytes > 0) graph.values[v].encodings = {bits};
    }
    const TradeOff trade_off(graph);
    const Bytes most = plan_none(graph).predicted_peak;
    for (int i = 0; i < 12; ++i) {
      const MemoryPlan plan = trade_off.best(graph, {trade_off.floor() + (most - trade_off.floor()) * i / 12, 0});
      const MemoryPlan again = predicted(graph, plan);
      ASSERT_EQ(plan.predicted_peak, again.predicted_peak);
      ASSERT_EQ(plan.predicted_seconds, again.predicted_seconds);
      ASSERT_EQ(plan.staging, staging_of(graph, plan));
      both += std::ranges::any_of(plan.actions, is_compressed) && !plan.staging.order.empty() ? 1 : 0;
    }
  }
  EXPECT_GT(both, 5);
}

TEST(TradeOff, AndTheBoundHoldForAllPlansWhoseCopiesHide) {
  int graphs = 0, points = 0, better = 0;
  for (std::uint64_t seed = 0; graphs < 120; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    StepGraph graph = synthetic::random_graph(seed, 2 + static_cast<int>(seed % 3));
    graph.moves.host.emplace();
    if (count_plans(graph, 3'000) >= 3'000) continue;
    ++graphs;
    const double price = std::pow(10.0, static_cast<double>(seed % 7) / 3 - 1);
    graph.moves = overlapping_moves(graph, price, static_cast<int>(seed % 3));
    std::vector<MemoryPlan> all = plans_by_brute_force(graph);
    const auto waiting = front_of(all);
    Effort effort{100'000'000};
    all = with_copies_staged(graph, std::move(all), effort);
    const TradeOff trade_off(graph);
    for (const MemoryPlan& best : front_of(all)) {
      ++points;
      ASSERT_LE(lower_bound(graph, best.predicted_peak).step_seconds, best.predicted_seconds * (1 + 1e-12));
      const auto* beside = std::ranges::find_if(waiting, [&](const MemoryPlan& plan) {
                             return plan.predicted_peak <= best.predicted_peak;
                           }).base();
      ASSERT_NE(beside, waiting.end().base());
      const MemoryPlan ours = trade_off.best(graph, {best.predicted_peak, 0});
      ASSERT_LE(ours.predicted_peak, best.predicted_peak);
      ASSERT_LE(ours.predicted_seconds, beside->predicted_seconds * (1 + 1e-12));
      better += ours.predicted_seconds < beside->predicted_seconds * (1 - 1e-9);
      ASSERT_NEAR(simulate(graph, ours).seconds, ours.predicted_seconds, 1e-12 * ours.predicted_seconds);
    }
  }
  EXPECT_GT(points, 120);
  EXPECT_GT(better, 20);
}

TEST(TradeOff, OfCopiesThatHideIsNoWorseThanEitherAloneAndBetterInTheLeast) {
  for (const int blocks : {8}) {
    const StepGraph without = synthetic::gpt_like({.blocks = blocks});
    for (const double seconds : {0.3, 2.0}) {  // of 1 MiB, each way; a block makes 17 MiB in 17 seconds
      SCOPED_TRACE(::testing::Message() << blocks << " blocks, " << seconds);
      StepGraph with = without;
      with.moves.host = MoveCost{.out_seconds_per_byte = seconds / 1_MiB,
                                 .in_seconds_per_byte = seconds / 1_MiB,
                                 .seconds_per_copy = 0.001,
                                 .overlaps = true,
                                 .budget = std::nullopt};
      const TradeOff recompute(without), both(with);
      std::vector<MemoryPlan> offloading{plan_none(with)};
      for (MemoryPlan& plan : offloading_plans(with)) offloading.push_back(predicted(with, std::move(plan)));
      Effort effort{100'000'000};
      offloading = front_of(with_copies_staged(with, std::move(offloading), effort));
      const Bytes most = plan_none(without).predicted_peak;
      for (int i = 0; i < 20; ++i) {
        const Budget budget{most - (most - recompute.floor()) * i / 19, 0};
        const MemoryPlan plan = both.best(with, budget);
        EXPECT_LE(plan.predicted_peak, budget.limit);
        EXPECT_LE(plan.predicted_seconds, recompute.best(without, budget).predicted_seconds) << i;
        if (offloading.back().predicted_peak <= budget.limit) {
          EXPECT_LE(plan.predicted_seconds, fastest_within(offloading, budget.limit).predicted_seconds) << i;
        }
        EXPECT_LE(lower_bound(with, budget.limit).step_seconds, plan.predicted_seconds * (1 + 1e-12));
      }
      const Budget smallest{recompute.floor(), 0};
      EXPECT_LT(both.best(with, smallest).predicted_seconds,
                0.98 * recompute.best(without, smallest).predicted_seconds);
    }
  }
}

TEST(TradeOff, IsNeverWorseForBeingAbleToMove) {
  for (const int blocks : {3, 8}) {
    const StepGraph without = synthetic::gpt_like({.blocks = blocks});
    for (const double seconds : {0.5, 5.0, 50.0}) {  // of 8 MiB, each way; a block's operators take 17
      SCOPED_TRACE(::testing::Message() << blocks << " blocks, " << seconds);
      StepGraph with = without;
      with.moves.host = MoveCost{.out_seconds_per_byte = seconds / 8_MiB,
                                 .in_seconds_per_byte = seconds / 8_MiB,
                                 .seconds_per_copy = 0.001,
                                 .budget = std::nullopt};
      const TradeOff recompute(without), both(with);
      EXPECT_LE(both.floor(), recompute.floor());
      const Bytes most = plan_none(without).predicted_peak;
      for (int i = 0; i <= 10; ++i) {
        const Budget budget{most - (most - recompute.floor()) * i / 10, 0};
        const MemoryPlan plan = both.best(with, budget);
        EXPECT_LE(plan.predicted_seconds, recompute.best(without, budget).predicted_seconds) << i;
        EXPECT_LE(lower_bound(with, budget.limit).step_seconds, plan.predicted_seconds * (1 + 1e-12));
      }
      const Budget smallest{recompute.floor(), 0};
      if (seconds < 50) {
        EXPECT_LT(both.best(with, smallest).predicted_seconds, recompute.best(without, smallest).predicted_seconds);
      }
    }
  }
}

TEST(TradeOff, MovesNoMoreThanTheHostHasRoomFor) {
  StepGraph graph = synthetic::gpt_like({.blocks = 8});
  graph.moves.host = MoveCost{
      .out_seconds_per_byte = 1e-9, .in_seconds_per_byte = 1e-9, .seconds_per_copy = 0, .budget = std::nullopt};
  const Bytes free = TradeOff(graph).floor();
  Bytes floor = 0;
  for (const Bytes budget : {0_MiB, 8_MiB, 40_MiB}) {
    graph.moves.host->budget = budget;
    const TradeOff trade_off(graph);
    for (const MemoryPlan& plan : trade_off.plans()) EXPECT_LE(simulate(graph, plan).host_peak, budget);
    EXPECT_TRUE(floor == 0 || trade_off.floor() <= floor);
    floor = trade_off.floor();
    EXPECT_GE(floor, free);
  }
}

}  // namespace
}  // namespace snug::plan
