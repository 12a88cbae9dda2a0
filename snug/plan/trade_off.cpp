#include "snug/plan/trade_off.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "snug/plan/bound/lower_bound.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/run/staging.h"
#include "snug/plan/search/annealing.h"
#include "snug/plan/search/chain_program.h"
#include "snug/plan/search/descent.h"
#include "snug/plan/search/every_plan.h"
#include "snug/plan/search/front.h"
#include "snug/plan/search/hidden_copies.h"
#include "snug/plan/search/lowest_peak.h"
#include "snug/plan/search/price_search.h"
#include "snug/plan/step/legal_actions.h"

namespace snug::plan {
namespace {

constexpr std::size_t kPieces = 48;
constexpr std::int64_t kPlansTried = 20'000;
constexpr std::int64_t kLeastEffort = 600'000, kMostEffort = 6'000'000;
constexpr std::int64_t kMostOpsToSearch = 1000;  // with thousands of simulations

/// Shares of their seconds that copies may take of a step which computes meanwhile.
constexpr std::array kSharesOfCopies = {0.4, 0.15, 0.03};
constexpr std::int64_t kHiddenEffort = 600'000;

/// Those of the plans, with and without memory for copies, that are worth having.
std::vector<MemoryPlan> staged_as_is_best(const StepGraph& graph, std::vector<MemoryPlan> plans) {
  std::vector<MemoryPlan> useful;
  for (MemoryPlan& plan : plans) {
    if (auto one = predicted_if_useful(graph, std::move(plan))) useful.push_back(std::move(*one));
  }
  Effort effort{kHiddenEffort};
  return front_of(with_copies_staged(graph, std::move(useful), effort));
}

/// Plans that count on copies that the step does not wait for. `front`: plans without any.
std::vector<MemoryPlan> plans_with_hidden_copies(const StepGraph& graph, const std::vector<MemoryPlan>& front,
                                                 Bytes most) {
  std::vector<MemoryPlan> found;
  const auto add = [&](std::vector<MemoryPlan> plans) {
    std::ranges::move(staged_as_is_best(graph, std::move(plans)), std::back_inserter(found));
    found = front_of(std::move(found));
  };
  add(offloading_plans(graph));
  for (const double share : kSharesOfCopies) {
    const StepGraph quicker = with_quicker_copies(graph, share);
    add(priced_plans(quicker));
    add(chain_plans(quicker, make_chain(quicker, kPieces), lower_bound_of_peak(quicker), most));
  }
  add(with_links_filled(graph, front));
  return found;
}

/// Without one of the means that a search may get lost among; nullopt where there is none.
std::optional<StepGraph> with_less_to_choose(const StepGraph& graph) {
  StepGraph less = graph;
  if (graph.moves.any()) {
    less.moves = {};
    return less;
  }
  std::size_t lossy = 0;
  for (ValueInfo& value : less.values)
    lossy += std::erase_if(value.encodings, [](const Encoding& e) { return is_lossy(e.codec); });
  return lossy > 0 ? std::optional(std::move(less)) : std::nullopt;
}

}  // namespace

TradeOff::TradeOff(const StepGraph& graph, SearchOptions options)
    : static_bytes_(graph.static_bytes), others_held_(graph.others_held) {
  // Small steps are done with before this is used up; for large ones a few passes over the graph are not much.
  const Effort effort{
      std::clamp<std::int64_t>(100 * static_cast<std::int64_t>(graph.ops.size()), kLeastEffort, kMostEffort)};
  std::vector<MemoryPlan> found = all_presets(graph);
  const Bytes most = found.front().predicted_peak;
  const auto add = [&](std::vector<MemoryPlan> plans) {
    for (MemoryPlan& plan : plans) {
      if (auto useful = predicted_if_useful(graph, std::move(plan))) found.push_back(std::move(*useful));
    }
  };
  if (const auto with_less = with_less_to_choose(graph)) {
    with_less_ = std::make_shared<const TradeOff>(*with_less, options);
    found.push_back(with_less_->lowest_);
  }
  add(low_plans(graph, kPieces, {graph.ops.size() < 500 ? 2 * effort.left : effort.left / 2}));
  const bool tiny = count_plans(graph, kPlansTried) < kPlansTried;
  if (tiny) add(every_plan(graph));
  // So far nothing depends on seconds.
  lowest_ = *std::ranges::min_element(found, {}, &MemoryPlan::predicted_peak);
  if (with_less_) found.insert(found.end(), with_less_->plans_.begin(), with_less_->plans_.end());
  std::ranges::move(priced_plans(graph), std::back_inserter(found));
  add(chain_plans(graph, make_chain(graph, kPieces), lower_bound_of_peak(graph), most));
  const bool overlaps = graph.moves.overlapping() != Home::Device;
  if (overlaps) {
    std::ranges::move(plans_with_hidden_copies(graph, with_less_->plans_, most), std::back_inserter(found));
  }
  plans_ = front_of(std::move(found));
  const auto ops = static_cast<std::int64_t>(graph.ops.size());
  const bool searched = !tiny && ops <= kMostOpsToSearch;
  const Effort search{std::min(600 * ops * ops, options.simulated_ops)};
  if (searched) {
    std::ranges::move(descending_plans(graph, plans_, kPieces, search), std::back_inserter(plans_));
    plans_ = front_of(std::move(plans_));
  }
  plans_ = with_gaps_filled(graph, std::move(plans_), {effort.left / 4});
  plans_ = with_actions_changed(graph, std::move(plans_), effort);
  // Where copies hide, the memory for them is one more thing to look for.
  if (searched) plans_ = with_annealing(graph, std::move(plans_), {overlaps ? 2 * search.left : search.left});
  if (overlaps) {
    plans_ = staged_as_is_best(graph, std::move(plans_));
    plans_ = with_actions_changed(graph, std::move(plans_), effort);
  }
  for (MemoryPlan& plan : plans_) plan.strategy = "optimal";
  lowest_.strategy = "optimal";
}

/// Plans between two neighbours of the front, for the bytes that a budget leaves unused. They depend on the neighbours
/// only, and are slower than the one and larger than the other: what holds for the front holds with them.
std::vector<MemoryPlan> TradeOff::between(const StepGraph& graph, std::size_t faster) const {
  const MemoryPlan &upper = plans_[faster], &lower = plans_[faster + 1];
  const Effort effort{
      std::clamp<std::int64_t>(40 * static_cast<std::int64_t>(graph.ops.size()), kLeastEffort / 4, kMostEffort / 6)};
  std::vector<MemoryPlan> found = with_gaps_filled(graph, {upper, lower}, {effort.left / 4});
  found = with_actions_changed(graph, std::move(found), effort);
  std::erase_if(found, [&](const MemoryPlan& plan) {
    return plan.predicted_peak <= lower.predicted_peak || plan.predicted_peak >= upper.predicted_peak ||
           plan.predicted_seconds <= upper.predicted_seconds || plan.predicted_seconds >= lower.predicted_seconds;
  });
  return found;
}

MemoryPlan TradeOff::best(const StepGraph& graph, Budget budget) const {
  MemoryPlan chosen = best_of_front(graph, budget);
  const auto less = with_less_ ? with_less_to_choose(graph) : std::nullopt;
  const Bytes more_static = graph.outside() - static_bytes_ - others_held_;
  if (!less || budget.for_blocks() < with_less_->floor() + more_static) return chosen;
  MemoryPlan other = with_less_->best(*less, budget);
  return other.predicted_seconds < chosen.predicted_seconds ? other : chosen;
}

MemoryPlan TradeOff::best_of_front(const StepGraph& graph, Budget budget) const {
  const Bytes more_static = graph.outside() - static_bytes_ - others_held_;
  const auto fits = [&](const MemoryPlan& plan) { return plan.predicted_peak + more_static <= budget.for_blocks(); };
  const auto fastest = std::ranges::find_if(plans_, fits);
  if (budget.for_blocks() < floor() + more_static) throw DoesNotFit(floor_of(graph, lowest(graph), budget));
  MemoryPlan chosen = *fastest;
  if (fastest != plans_.begin()) {
    // Searched for with the static bytes of then.
    StepGraph then = graph;
    then.static_bytes = static_bytes_;
    then.others_held = others_held_;
    const auto found = between(then, static_cast<std::size_t>(fastest - plans_.begin()) - 1);
    if (const auto better = std::ranges::find_if(found, fits); better != found.end()) chosen = *better;
  }
  chosen = as_now(graph, std::move(chosen));
  chosen.budget = budget.limit;
  return chosen;
}

MemoryPlan TradeOff::as_now(const StepGraph& graph, MemoryPlan plan) const {
  plan.strategy = "optimal";
  plan.staging = staging_of(graph, plan);
  plan.predicted_peak += graph.outside() - static_bytes_ - others_held_;
  return plan;
}

MemoryPlan TradeOff::lowest(const StepGraph& graph) const { return as_now(graph, lowest_); }

}  // namespace snug::plan
