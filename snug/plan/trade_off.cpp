#include "snug/plan/trade_off.h"

#include <algorithm>
#include <utility>

#include "snug/plan/chain_program.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/every_plan.h"
#include "snug/plan/front.h"
#include "snug/plan/lower_bound.h"
#include "snug/plan/lowest_peak.h"
#include "snug/plan/presets.h"
#include "snug/plan/price_search.h"
#include "snug/plan/simulator.h"

namespace snug::plan {
namespace {

constexpr std::size_t kPieces = 48;
constexpr std::int64_t kPlansTried = 20'000;
constexpr std::int64_t kLeastEffort = 800'000, kMostEffort = 6'000'000;

}  // namespace

TradeOff::TradeOff(const StepGraph& graph) : static_bytes_(graph.static_bytes) {
  std::vector<MemoryPlan> found = all_presets(graph);
  const Bytes most = found.front().predicted_peak;
  std::ranges::move(priced_plans(graph), std::back_inserter(found));
  for (MemoryPlan& plan : chain_plans(graph, make_chain(graph, kPieces), lower_bound_of_peak(graph), most)) {
    if (auto useful = predicted_if_useful(graph, std::move(plan))) found.push_back(std::move(*useful));
  }
  // Small steps are done with before this is used up; for large ones a few passes over the graph are not much.
  const Effort effort{
      std::clamp<std::int64_t>(100 * static_cast<std::int64_t>(graph.ops.size()), kLeastEffort, kMostEffort)};
  for (MemoryPlan& plan : low_plans(graph, kPieces, effort)) {
    if (auto useful = predicted_if_useful(graph, std::move(plan))) found.push_back(std::move(*useful));
  }
  if (count_plans(graph, kPlansTried) < kPlansTried) {
    for (MemoryPlan& plan : every_plan(graph)) {
      if (auto useful = predicted_if_useful(graph, std::move(plan))) found.push_back(std::move(*useful));
    }
  }
  plans_ = with_gaps_filled(graph, front_of(std::move(found)), {effort.left / 4});
  plans_ = with_values_flipped(graph, std::move(plans_), effort);
  for (MemoryPlan& plan : plans_) plan.strategy = "optimal";
}

MemoryPlan TradeOff::best(const StepGraph& graph, Budget budget) const {
  const Bytes more_static = graph.static_bytes - static_bytes_;
  for (const MemoryPlan& plan : plans_) {
    if (plan.predicted_peak + more_static > budget.for_blocks()) continue;
    MemoryPlan chosen = plan;
    chosen.predicted_peak += more_static;
    chosen.budget = budget.device;
    return chosen;
  }
  MemoryPlan least = plans_.back();
  least.predicted_peak += more_static;
  throw DoesNotFit(floor_of(graph, least, budget));
}

}  // namespace snug::plan
