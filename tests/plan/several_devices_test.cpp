#include "snug/plan/several_devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "snug/plan/does_not_fit.h"
#include "snug/plan/planner.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

constexpr int kSteps = 32;

/// A chain of which the first so many operators are on one device and the others on another, with weights on both.
StepGraph chain_on_two(int on_first, int steps = kSteps) {
  StepGraph graph = synthetic::uniform_chain(steps);
  graph.devices = {"gpu:0", "gpu:1"};
  DevicePart part;
  part.static_bytes = part.static_by_tag[0] = 5_MiB;
  part.ops.resize(graph.ops.size());
  part.events.resize(graph.events.size());
  const auto moves = [&](Bytes& bytes, Bytes& there) { there = std::exchange(bytes, 0); };
  for (OpId op = on_first; op < steps; ++op) {
    moves(graph.ops[at(op)].peak_bytes, part.ops[at(op)].peak);
    for (const Output& out : graph.flow.outputs(op)) graph.values[at(out.value)].device = 1;
  }
  int next = steps;  // backward goes over them from the last
  for (std::size_t i = 0; i < graph.events.size(); ++i) {
    if (graph.events[i].kind == Event::Kind::Other && --next >= on_first)
      moves(graph.events[i].peak, part.events[i].peak);
  }
  graph.parts.push_back(std::move(part));
  return graph;
}

Bytes peak_on(const StepGraph& graph, const MemoryPlan& plan, std::string_view device) {
  const DevicePart* part = graph.part_of(device);
  return simulate(part != nullptr ? seen_from(graph, *part) : graph, plan).peak;
}

Budgets budgets(Bytes first, Bytes second) {
  return {Budget{.limit = first}, {{.device = "gpu:1", .budget = {.limit = second}}}};
}

TEST(SeveralDevices, AStepIsSeenFromEachOfThem) {
  const StepGraph graph = chain_on_two(16);
  const StepGraph seen = seen_from(graph, graph.parts.front());
  EXPECT_EQ(seen.devices, (std::vector<std::string>{"gpu:1", "gpu:0"}));
  EXPECT_EQ(seen.static_bytes, 5_MiB);
  EXPECT_EQ(seen.flow, graph.flow);
  EXPECT_TRUE(seen.parts.empty());
  for (ValueId v = 0; v < graph.flow.values(); ++v)
    EXPECT_EQ(seen.step_bytes(v) + graph.step_bytes(v), graph.values[at(v)].bytes);
  const MemoryPlan none = plan_none(graph);
  // What both take at their own peak is more than what one device that has all takes.
  EXPECT_GT(peak_on(graph, none, "gpu:0"), 16_MiB);
  EXPECT_GT(peak_on(graph, none, "gpu:1"), 16_MiB + 5_MiB);
  EXPECT_LT(peak_on(graph, none, "gpu:0"), simulate(synthetic::uniform_chain(kSteps), none).peak);
}

TEST(SeveralDevices, APlanFitsEachBudget) {
  for (const int on_first : {8, 16, 24}) {
    const StepGraph graph = chain_on_two(on_first);
    const Planner planner(graph, "optimal");
    const MemoryPlan none = plan_none(graph);
    const Bytes first = peak_on(graph, none, "gpu:0"), second = peak_on(graph, none, "gpu:1");
    for (const auto& [of_first, of_second] : {std::pair(1.0, 1.0), {1.0, 0.75}, {0.7, 1.0}, {0.7, 0.75}}) {
      SCOPED_TRACE(::testing::Message() << on_first << ", " << of_first << ", " << of_second);
      const auto share = [](Bytes bytes, double part) { return static_cast<Bytes>(static_cast<double>(bytes) * part); };
      const Budgets limits = budgets(share(first, of_first), share(second, of_second));
      const MemoryPlan plan = planner.plan(graph, limits);
      EXPECT_EQ(plan.predicted_peak, peak_on(graph, plan, "gpu:0"));
      EXPECT_LE(plan.predicted_peak, limits.own->limit);
      ASSERT_EQ(plan.others.size(), 1U);
      EXPECT_EQ(plan.others[0].device, "gpu:1");
      EXPECT_EQ(plan.others[0].budget, limits.others[0].budget.limit);
      EXPECT_EQ(plan.others[0].unplanned_peak, second);
      EXPECT_EQ(plan.others[0].predicted_peak, peak_on(graph, plan, "gpu:1"));
      EXPECT_LE(plan.others[0].predicted_peak, limits.others[0].budget.limit);
      EXPECT_EQ(plan.predicted_seconds, simulate(graph, plan).seconds);
      EXPECT_EQ(plan.predicted_seconds > graph.step_seconds, of_first < 1 || of_second < 1);
      EXPECT_EQ(memory_plan_from_json(nlohmann::json(to_json(plan))), plan);
    }
  }
}

TEST(SeveralDevices, WithRoomOnOneOfThemItsValuesAreKept) {
  const StepGraph graph = chain_on_two(16);
  const MemoryPlan none = plan_none(graph);
  const Bytes first = peak_on(graph, none, "gpu:0"), second = peak_on(graph, none, "gpu:1");
  const MemoryPlan plan = Planner(graph, "optimal").plan(graph, budgets(first, second - 4_MiB));
  EXPECT_EQ(plan.predicted_peak, first) << "nothing there is dropped or made again";
  // As long as if that device were the only one, whose budget is.
  StepGraph alone = seen_from(graph, graph.parts.front());
  EXPECT_NEAR(plan.predicted_seconds, Planner(alone, "optimal").plan(alone, Budget{second - 4_MiB}).predicted_seconds,
              0.01 * graph.step_seconds);
}

TEST(SeveralDevices, EachOfThemHasTheFloorOfADeepChainOfItsOwn) {
  constexpr int kDeep = 80;
  const Bytes alone = TradeOff(synthetic::uniform_chain(kDeep)).floor();
  const StepGraph graph = chain_on_two(kDeep, 2 * kDeep);
  const StepGraph second = seen_from(graph, graph.parts.front());
  const Planner planner(graph, "optimal");
  const Bytes of_first = planner.floor(graph), of_second = TradeOff(second).floor();
  // A value that crosses is on either.
  EXPECT_LE(of_first - graph.static_bytes, alone + 1_MiB);
  EXPECT_LE(of_second - second.static_bytes, alone + 1_MiB);
  // Both can have what they take with a little more, at once.
  EXPECT_NO_THROW((void)planner.plan(graph, budgets(of_first + 1_MiB, of_second + 1_MiB)));
}

TEST(SeveralDevices, ThatDoesNotFitOneOfThemIsRefusedByItsName) {
  const StepGraph graph = chain_on_two(16);
  const Planner planner(graph, "optimal");
  try {
    (void)planner.plan(graph, budgets(1_GiB, 6_MiB));
    FAIL() << "it fits";
  } catch (const DoesNotFit& error) {
    EXPECT_EQ(error.floor().device, "gpu:1");
    EXPECT_EQ(error.floor().budget, 6_MiB);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("the budget of gpu:1 is 6.0 MiB"));
    EXPECT_NO_THROW((void)planner.plan(graph, budgets(1_GiB, error.floor().floor)));
  }
  try {
    (void)planner.plan(graph, budgets(2_MiB, 1_GiB));
    FAIL() << "it fits";
  } catch (const DoesNotFit& error) {
    EXPECT_EQ(error.floor().device, "");
  }
  // A preset has one plan.
  const MemoryPlan none = plan_none(graph);
  const Bytes second = peak_on(graph, none, "gpu:1");
  EXPECT_EQ(Planner(graph, "none").plan(graph, budgets(1_GiB, second)).others.at(0).predicted_peak, second);
  EXPECT_THROW((void)Planner(graph, "none").plan(graph, budgets(1_GiB, second - 1)), DoesNotFit);
}

TEST(SeveralDevices, DevicesThatWereNotMeasuredAreLeftToEvictions) {
  const StepGraph graph = chain_on_two(16);
  const Budgets limits{Budget{1_GiB}, {{.device = "cpu", .budget = {.limit = 1}}}};
  const MemoryPlan plan = Planner(graph, "optimal").plan(graph, limits);
  EXPECT_TRUE(plan.others.empty());
  EXPECT_EQ(plan.predicted_seconds, graph.step_seconds);
}

TEST(SeveralDevices, OnlyValuesOfTheFirstAreMoved) {
  StepGraph graph = chain_on_two(16);
  graph.moves.host =
      MoveCost{.out_seconds_per_byte = 1e-12, .in_seconds_per_byte = 1e-12, .seconds_per_copy = 0, .budget = 8_MiB};
  EXPECT_EQ(step_graph_from_json(nlohmann::json(to_json(graph))), graph);
  EXPECT_EQ(seen_from(graph, graph.parts.front()).moves.host, std::nullopt);
  const MemoryPlan none = plan_none(graph);
  const Bytes first = peak_on(graph, none, "gpu:0"), second = peak_on(graph, none, "gpu:1");
  const MemoryPlan plan = Planner(graph, "optimal").plan(graph, budgets(first - 4_MiB, second - 4_MiB));
  Bytes moved = 0;
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    if (plan.action(v) != kMove) continue;
    moved += graph.values[at(v)].bytes;
    EXPECT_EQ(graph.values[at(v)].device, 0);
  }
  EXPECT_GE(moved, 4_MiB);
  EXPECT_LE(simulate(graph, plan).host_peak, 8_MiB);
}

TEST(SeveralDevices, MemoryForCopiesIsThatOfTheActionsItWasFoundWith) {
  StepGraph graph = chain_on_two(16);
  const double per_byte = graph.ops.front().seconds / static_cast<double>(graph.values.back().bytes + 1_MiB);
  graph.moves.host =
      MoveCost{.out_seconds_per_byte = per_byte, .in_seconds_per_byte = per_byte, .overlaps = true, .budget = 64_MiB};
  const MemoryPlan none = plan_none(graph);
  const Budgets limits = budgets(peak_on(graph, none, "gpu:0") - 6_MiB, 1_GiB);
  DeviceSearches searches;
  const MemoryPlan plan = plan_everywhere(graph, none, limits, searches);
  EXPECT_LE(peak_on(graph, plan, "gpu:0"), limits.own->limit);
  EXPECT_GT(std::ranges::count_if(plan.actions, is_moved), 0);
  EXPECT_GT(plan.staging.leaving + plan.staging.arriving, 0) << "and nobody waits for each copy";
}

TEST(SeveralDevices, AStepIsSearchedAgainOnlyForOtherPlansOfOtherDevices) {
  StepGraph graph = chain_on_two(16);
  const MemoryPlan none = plan_none(graph);
  const Bytes first = peak_on(graph, none, "gpu:0"), second = peak_on(graph, none, "gpu:1");
  DeviceSearches searches;
  const MemoryPlan plan = plan_everywhere(graph, none, budgets(first - 3_MiB, second - 3_MiB), searches);
  const std::size_t made = searches.made();
  EXPECT_GE(made, 2U);
  EXPECT_EQ(plan_everywhere(graph, none, budgets(first - 3_MiB, second - 3_MiB), searches), plan);
  EXPECT_EQ(searches.made(), made);
  // The memory outside of the step has changed.
  graph.static_bytes += 512_KiB;
  const Budgets larger = budgets(first - 3_MiB + 512_KiB, second - 3_MiB);
  const MemoryPlan later = plan_everywhere(graph, none, larger, searches);
  EXPECT_EQ(searches.made(), made);
  DeviceSearches fresh;
  EXPECT_EQ(plan_everywhere(graph, none, larger, fresh), later);
  EXPECT_EQ(fresh.made(), made);
  EXPECT_EQ(later.actions, plan.actions);
}

TEST(SeveralDevices, TheirFiguresAreWrittenAndRead) {
  StepGraph graph = chain_on_two(16);
  graph.end_with_update({1_MiB, 2_MiB}, 0.25);
  EXPECT_EQ(graph.all_update_bytes(), (std::vector<Bytes>{1_MiB, 2_MiB}));
  EXPECT_EQ(seen_from(graph, graph.parts.front()).events.back().peak, 2_MiB);
  EXPECT_EQ(step_graph_from_json(nlohmann::json(to_json(graph))), graph);
  auto damaged = to_json(graph);
  damaged["parts"][0]["ops"].erase(0);
  EXPECT_THAT([&] { (void)step_graph_from_json(nlohmann::json(damaged)); },
              ::testing::ThrowsMessage<UsageError>(::testing::HasSubstr("parts")));
  damaged = to_json(graph);
  damaged["parts"][0]["device"] = 2;
  EXPECT_THROW((void)step_graph_from_json(nlohmann::json(damaged)), UsageError);
}

}  // namespace
}  // namespace snug::plan
