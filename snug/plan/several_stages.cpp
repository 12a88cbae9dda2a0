#include "snug/plan/several_stages.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "snug/plan/bound/unavoidable.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/run/in_flight.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/step/legal_actions.h"

namespace snug::plan {
namespace {

constexpr int kHalvings = 10;  // of the share that is looked for

std::vector<StepGraph*> graphs_of(const std::vector<StageSteps>& stages) {
  std::vector<StepGraph*> graphs;
  for (const StageSteps& stage : stages) graphs.push_back(stage.graph);
  return graphs;
}

class StageShares {
 public:
  StageShares(const std::vector<StageSteps>& stages, const Budgets& budgets) : stages_(stages), budgets_(budgets) {
    keep_everything(graphs_of(stages));
    for (const auto& [graph, planner] : stages) {
      none_.push_back(plan_none(*graph).predicted_peak);
      floors_.push_back(planner->floor(*graph));
    }
  }

  /// Where each saves so much of what it can: 0, nothing, to 1, where no plan depends on measured times: the smallest
  /// budget is the same in each recording. Their graphs know of each other then.
  std::vector<MemoryPlan> plans_at(double share) {
    std::vector<MemoryPlan> plans;
    std::vector<Bytes> outside;
    keep_everything(graphs_of(stages_));
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      const auto saved = static_cast<Bytes>(share * static_cast<double>(none_[i] - floors_[i]));
      Budgets alone = budgets_;
      // A preset may take more than keeping everything does.
      if (budgets_.own) alone.own = Budget{.limit = std::max(none_[i] - saved, floors_[i]), .reserve = 0};
      const Planner& planner = *stages_[i].planner;
      plans.push_back(share < 1 ? planner.plan(*stages_[i].graph, alone) : planner.lowest(*stages_[i].graph, alone));
      outside.push_back(stages_[i].graph->outside());
    }
    set_others_held(graphs_of(stages_), plans);
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (plans[i].strategy == "eviction") {  // which says what it comes down to, and not how
        plans[i].predicted_peak += stages_[i].graph->outside() - outside[i];
      } else {
        plans[i].predicted_peak = simulate(*stages_[i].graph, plans[i]).peak;
      }
      plans[i].unplanned_peak = none_[i];
      plans[i].budget = budgets_.own ? budgets_.own->limit : 0;
    }
    return plans;
  }

  [[nodiscard]] bool fit(const std::vector<MemoryPlan>& plans) const {
    return !budgets_.own || std::ranges::all_of(plans, [&](const MemoryPlan& plan) {
      return plan.predicted_peak <= budgets_.own->for_blocks();
    });
  }

 private:
  const std::vector<StageSteps>& stages_;
  const Budgets& budgets_;
  std::vector<Bytes> none_, floors_;  // by stage: peaks when all others keep everything
};

std::size_t highest(const std::vector<MemoryPlan>& plans) {
  return static_cast<std::size_t>(std::ranges::max_element(plans, {}, &MemoryPlan::predicted_peak) - plans.begin());
}

}  // namespace

void set_others_held(const std::vector<StepGraph*>& graphs, const std::vector<MemoryPlan>& plans) {
  std::map<std::uint64_t, Bytes> held, least;  // by one of each kind, under these plans and under any
  for (std::size_t i = 0; i < graphs.size(); ++i) {
    const std::uint64_t kind = graphs[i]->fingerprint();
    held[kind] = held_in_between(*graphs[i], plans[i]);
    least[kind] = unavoidable_in_between(*graphs[i]);
  }
  for (StepGraph* const graph : graphs) {
    const auto by_all = [&](const std::vector<InFlight>& at_once) {
      Bytes bytes = 0;
      for (const auto& [kind, count] : at_once) bytes += count * held[kind];
      return bytes;
    };
    std::vector<InFlight> whole;  // where nobody has said what is in flight at once
    for (const StepGraph* const one : graphs) whole.push_back({one->fingerprint(), one->in_flight});
    Bytes most = graph->in_flight_with.empty() ? by_all(whole) : 0;
    for (const std::vector<InFlight>& at_once : graph->in_flight_with) most = std::max(most, by_all(at_once));
    const std::uint64_t own = graph->fingerprint();
    graph->others_held = std::max<Bytes>(most - graph->in_flight * held[own], 0);
    // Only where as many of its own are in flight as are counted apart from the others'.
    graph->others_least = 0;
    const auto note_least = [&](const std::vector<InFlight>& at_once) {
      Bytes bytes = 0;
      for (const auto& [kind, count] : at_once) {
        if (kind == own && count < graph->in_flight) return;
        if (kind != own) bytes += count * least[kind];
      }
      graph->others_least = std::max(graph->others_least, std::min(bytes, graph->others_held));
    };
    if (graph->in_flight_with.empty()) note_least(whole);
    for (const std::vector<InFlight>& at_once : graph->in_flight_with) note_least(at_once);
  }
}

void keep_everything(const std::vector<StepGraph*>& graphs) {
  std::vector<MemoryPlan> plans;
  for (const StepGraph* const graph : graphs) plans.push_back(plan_none(*graph));
  set_others_held(graphs, plans);
}

void divide_tiers(const std::vector<StepGraph*>& graphs) {
  std::vector<double> weights;
  double all = 0;
  for (const StepGraph* const graph : graphs) {
    double bytes = 0;
    for (ValueId v = 0; v < graph->flow.values(); ++v)
      bytes += may_move(*graph, v) ? static_cast<double>(graph->step_bytes(v)) : 0;
    weights.push_back(bytes * graph->in_flight);
    all += weights.back();
  }
  for (std::size_t i = 0; i < graphs.size(); ++i) {
    const double share = all > 0 ? weights[i] / all : 1 / static_cast<double>(graphs.size());
    for (std::optional<MoveCost>* const tier : {&graphs[i]->moves.host, &graphs[i]->moves.disk}) {
      if (*tier && (*tier)->budget) (*tier)->budget = static_cast<Bytes>(share * static_cast<double>(*(*tier)->budget));
    }
  }
}

std::vector<MemoryPlan> plan_stages(const std::vector<StageSteps>& stages, const Budgets& budgets) {
  StageShares search(stages, budgets);
  std::vector<MemoryPlan> plans = search.plans_at(0);
  if (search.fit(plans)) return plans;
  plans = search.plans_at(1);
  if (!search.fit(plans)) {
    const std::size_t most = highest(plans);
    throw DoesNotFit(floor_of(*stages[most].graph, plans[most], *budgets.own));
  }
  double fits = 1, does_not = 0;
  for (int i = 0; i < kHalvings; ++i) {
    const double share = (fits + does_not) / 2;
    (search.fit(search.plans_at(share)) ? fits : does_not) = share;
  }
  return search.plans_at(fits);
}

Bytes floor_of_stages(const std::vector<StageSteps>& stages) {
  const Budgets least{Budget{.limit = 1, .reserve = 0}};
  const std::vector<MemoryPlan> plans = StageShares(stages, least).plans_at(1);
  return plans[highest(plans)].predicted_peak;
}

}  // namespace snug::plan
