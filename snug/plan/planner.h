#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "snug/plan/bound/lower_bound.h"
#include "snug/plan/budget.h"
#include "snug/plan/several_devices.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"
#include "snug/plan/strategy.h"
#include "snug/plan/trade_off.h"

namespace snug::plan {

/// Makes plans for one step by one strategy. The step is searched once; each budget simulates up to a million operators
/// more. With budgets for further devices, each new combination of actions on the other devices needs its own search
/// (DeviceSearches). Copies of a planner share their searches. Any thread.
class Planner {
 public:
  /// `strategy` as strategy_from reads it. Throws UsageError when it names none or its argument does not suit the step.
  Planner(const StepGraph& graph, std::string_view strategy, SearchOptions options = {});

  /// Of "optimal", with what has been searched for the same graph elsewhere: trade_off() of another planner.
  Planner(const StepGraph& graph, TradeOff found);

  /// Always the given plan, which must be for the graph; its predictions are made anew.
  Planner(const StepGraph& graph, MemoryPlan plan);

  /// `now`: the graph that the planner was made for; its static bytes may have changed, and what others hold. Without a
  /// budget, Optimal keeps everything. Of further devices the graph must have figures: see plan_everywhere. Throws
  /// DoesNotFit when the strategy has no plan under these budgets.
  [[nodiscard]] MemoryPlan plan(const StepGraph& now, const Budgets& budgets) const;

  /// The plan of its strategy with the smallest peak on the first device, whatever its budget: floor(). It depends on
  /// no measured time, unless there are budgets for further devices. Otherwise as plan().
  [[nodiscard]] MemoryPlan lowest(const StepGraph& now, const Budgets& budgets) const;

  /// Of "optimal" what it has searched; nullptr for others.
  [[nodiscard]] const TradeOff* trade_off() const noexcept { return std::get_if<TradeOff>(&plans_); }

  /// As it was given; "optimal" for a given plan.
  [[nodiscard]] const std::string& strategy() const noexcept { return strategy_; }

  /// The smallest peak of the strategy's plans, with the static bytes of `now`.
  [[nodiscard]] Bytes floor(const StepGraph& now) const;

 private:
  struct Evicted {
    Bytes least = 0;  // no step takes less
  };
  [[nodiscard]] MemoryPlan plan_of_first(const StepGraph& now, std::optional<Budget> budget) const;
  /// `plan`, which is for the first device and the static bytes of the graph it was made for, as of `now`.
  [[nodiscard]] MemoryPlan moved(const StepGraph& now, MemoryPlan plan) const;
  [[nodiscard]] MemoryPlan everywhere(const StepGraph& now, MemoryPlan first, const Budgets& budgets) const;
  using Plans = std::variant<TradeOff, MemoryPlan, Evicted>;
  static Plans plans_of(const StepGraph& graph, const Strategy& strategy, SearchOptions options);

  std::string strategy_ = "optimal";
  MemoryPlan none_;
  Plans plans_;
  Bytes outside_;  // see StepGraph::outside
  SearchOptions options_;
  std::shared_ptr<DeviceSearches> searches_ = std::make_shared<DeviceSearches>();
};

/// What no plan within the budget beats; without one, no plan within what the step takes with everything kept.
LowerBound lower_bound_within(const StepGraph& graph, std::optional<Budget> budget);

/// One plan by a strategy: see Planner.
MemoryPlan make_plan(const StepGraph& graph, std::string_view strategy, std::optional<Budget> budget);

}  // namespace snug::plan
