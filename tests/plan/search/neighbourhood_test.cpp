#include "snug/plan/search/neighbourhood.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include "snug/plan/run/presets.h"
#include "snug/plan/run/staging.h"
#include "snug/plan/search/change.h"
#include "snug/plan/step/legal_actions.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

constexpr int kTries = 20'000, kBlocks = 4;

StepGraph with_link(StepGraph graph) {
  graph.moves.host =
      MoveCost{.out_seconds_per_byte = 1e-7, .in_seconds_per_byte = 1e-7, .overlaps = true, .budget = std::nullopt};
  return graph;
}

Encodings encodings_of(Bytes bytes) {
  Encoding bits;
  bits.codec = Codec::Bits;
  bits.bytes = bits.content_bytes = bytes;
  return {bits};
}

TEST(Neighbourhood, KnowsWhichValuesAreOfOneKind) {
  const StepGraph graph = synthetic::gpt_like({.blocks = kBlocks});
  const Neighbourhood near(graph, 0);
  bool found = false;
  for (const auto& kind : near.kinds()) {
    std::set<std::string> names;
    std::set<Bytes> sizes;
    for (const ValueId v : kind) {
      names.insert(graph.ops[at(graph.flow.producer(v))].name);
      sizes.insert(graph.step_bytes(v));
    }
    EXPECT_EQ(names.size(), 1U);
    EXPECT_EQ(sizes.size(), 1U);
    EXPECT_TRUE(std::ranges::is_sorted(kind));
    if (*names.begin() == "aten::gelu") found = kind.size() == kBlocks;
  }
  EXPECT_TRUE(found) << "the activations of all blocks";
}

TEST(Neighbourhood, LeavesSmallValuesAsTheyAre) {
  const StepGraph graph = synthetic::gpt_like({.blocks = kBlocks});
  const Neighbourhood near(graph, 1_MiB);  // as large as a hidden state
  const MemoryPlan none = plan_none(graph);
  Chance chance(1);
  for (int i = 0; i < kTries; ++i) {
    const auto next = near.near(none, chance);
    if (!next) continue;
    for (ValueId v = 0; v < graph.flow.values(); ++v) {
      if (graph.step_bytes(v) > 1_MiB) continue;
      ASSERT_EQ(next->action(v), none.action(v));
    }
  }
  EXPECT_TRUE(Neighbourhood(graph, 1_GiB).empty());
}

/// All that it comes by from a plan is a plan for the graph.
TEST(Neighbourhood, StaysAmongWhatPlansMaySay) {
  StepGraph graph = with_link(synthetic::gpt_like({.blocks = kBlocks}));
  graph.moves.disk = graph.moves.host;
  for (std::size_t v = 0; v < graph.values.size(); v += 3) {
    if (graph.values[v].saved) graph.values[v].encodings = encodings_of(4_KiB);
  }
  const Neighbourhood near(graph, 0);
  Chance chance(2);
  MemoryPlan plan = plan_none(graph);
  for (int i = 0; i < kTries; ++i) {
    const auto next = near.near(plan, chance);
    if (!next) continue;
    ASSERT_FALSE(next->actions == plan.actions && next->segments == plan.segments && next->staging == plan.staging);
    for (ValueId v = 0; v < graph.flow.values(); ++v) {
      if (has_choice(graph, v)) {
        ASSERT_EQ(std::ranges::count(legal_actions(graph, v), next->action(v)), 1);
      } else {
        ASSERT_EQ(next->action(v), plan.action(v));
      }
    }
    for (std::size_t a = 0; a < next->segments.size(); ++a) {
      ASSERT_GE(next->segments[a].begin, 0);
      ASSERT_LT(next->segments[a].begin, next->segments[a].end);
      ASSERT_LE(next->segments[a].end, graph.flow.ops());
      for (std::size_t b = 0; b < a; ++b) {
        ASSERT_TRUE(nest_or_apart(next->segments[a], next->segments[b]));
        ASSERT_FALSE(next->segments[a] == next->segments[b]);
      }
    }
    ASSERT_TRUE(next->staging.leaving >= 0 && next->staging.arriving >= 0 && next->staging.first >= 0);
    std::set<ValueId> once;
    for (const ValueId v : next->staging.order) ASSERT_TRUE(may_move(graph, v) && once.insert(v).second);
    plan = *next;
  }
}

TEST(Neighbourhood, ChangesAllThatAPlanSays) {
  const StepGraph graph = with_link(synthetic::gpt_like({.blocks = kBlocks}));
  const Neighbourhood near(graph, 0);
  MemoryPlan plan = plan_none(graph);
  const ValueId first = near.kinds().front().front();
  plan.actions[at(first)] = kRecompute;
  const ValueId moved = near.kinds().back().front();
  ASSERT_TRUE(may_move(graph, moved));
  plan.actions[at(moved)] = kMove;
  plan.segments = {{4, 8}};
  plan = staged(graph, std::move(plan), 1_MiB, 1_MiB);
  std::set<std::size_t> values_changed;
  int exchanges = 0;
  bool fewer = false, more = false, other = false, leaving = false, arriving = false, later = false;
  Chance chance(3);
  for (int i = 0; i < kTries; ++i) {
    const auto next = near.near(plan, chance);
    if (!next) continue;
    std::size_t count = 0, recomputed = 0;
    for (ValueId v = 0; v < graph.flow.values(); ++v) count += next->action(v) != plan.action(v) ? 1 : 0;
    for (const ValueId v : near.kinds().front()) {
      if (v != first && next->action(v) == kRecompute) ++recomputed;
    }
    values_changed.insert(count);
    exchanges += count == 2 && next->action(first) == kKeep && recomputed == 1 ? 1 : 0;
    fewer |= next->segments.empty();
    more |= next->segments.size() == 2;
    other |= next->segments.size() == 1 && next->segments != plan.segments;
    leaving |= next->staging.leaving != plan.staging.leaving;
    arriving |= next->staging.arriving != plan.staging.arriving && next->staging.order == plan.staging.order &&
                next->staging.first == plan.staging.first;
    later |= next->staging.first != plan.staging.first;
  }
  const auto largest = std::ranges::max_element(near.kinds(), {}, [](const auto& kind) { return kind.size(); });
  for (std::size_t count = 0; count <= largest->size(); ++count) EXPECT_TRUE(values_changed.contains(count)) << count;
  EXPECT_EQ(*values_changed.rbegin(), largest->size()) << "no more than a row of a kind";
  EXPECT_GT(exchanges, 50) << "two single changes within a kind make a few";
  EXPECT_TRUE(fewer && more && other);
  EXPECT_TRUE(leaving && arriving && later);
}

TEST(Neighbourhood, HasNoMemoryForCopiesWhereNoneGoOnBesideTheStep) {
  StepGraph graph = synthetic::gpt_like({.blocks = kBlocks});
  graph.moves.host = MoveCost{.out_seconds_per_byte = 1e-7, .in_seconds_per_byte = 1e-7, .budget = std::nullopt};
  const Neighbourhood near(graph, 0);
  Chance chance(4);
  for (int i = 0; i < kTries; ++i) {
    const auto next = near.near(plan_none(graph), chance);
    if (!next) continue;
    ASSERT_EQ(next->staging, Staging{});
  }
}

}  // namespace
}  // namespace snug::plan
