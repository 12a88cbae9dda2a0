#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "snug/plan/bound/lower_bound.h"
#include "snug/plan/budget.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"
#include "snug/plan/strategy.h"
#include "snug/plan/trade_off.h"

namespace snug::plan {

/// Makes plans for one step by one strategy. "optimal" searches once, when the first budget comes that the step does
/// not fit with everything kept; further budgets are quick. Any thread may ask for a plan.
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

  /// Of "optimal" what it finds; nullptr for others. Searches unless it has.
  [[nodiscard]] const TradeOff* trade_off() const;
  /// Whether trade_off() has to search.
  [[nodiscard]] bool has_yet_to_search() const;

  /// As it was given; "optimal" for a given plan.
  [[nodiscard]] const std::string& strategy() const noexcept { return strategy_; }

  /// The smallest peak of the strategy's plans, with the static bytes of `now`.
  [[nodiscard]] Bytes floor(const StepGraph& now) const;

 private:
  struct Evicted {
    Bytes least = 0;  // no step takes less
  };
  /// What "optimal" finds, or the graph that it will search.
  class Search {
   public:
    Search(StepGraph graph, SearchOptions options) : graph_(std::move(graph)), options_(options) {}
    explicit Search(TradeOff found) : found_(std::move(found)) {}
    const TradeOff& found();
    [[nodiscard]] bool is_done();

   private:
    std::mutex mutex_;
    std::optional<StepGraph> graph_;
    SearchOptions options_;
    std::optional<TradeOff> found_;
  };
  [[nodiscard]] MemoryPlan plan_of_first(const StepGraph& now, std::optional<Budget> budget) const;
  using Plans = std::variant<std::shared_ptr<Search>, MemoryPlan, Evicted>;
  static Plans plans_of(const StepGraph& graph, const Strategy& strategy, SearchOptions options);

  std::string strategy_ = "optimal";
  MemoryPlan none_;
  Plans plans_;
  Bytes outside_;  // see StepGraph::outside
  SearchOptions options_;
};

/// What no plan within the budget beats; without one, no plan within what the step takes with everything kept.
LowerBound lower_bound_within(const StepGraph& graph, std::optional<Budget> budget);

/// One plan by a strategy: see Planner.
MemoryPlan make_plan(const StepGraph& graph, std::string_view strategy, std::optional<Budget> budget);

}  // namespace snug::plan
