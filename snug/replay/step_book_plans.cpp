// How the steps of a session get their plans: when they are added, and again when the memory outside of them has
// changed.
#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "snug/base/errors.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/several_stages.h"
#include "snug/plan/step/together.h"
#include "snug/replay/step_book.h"
#include "snug/replay/step_parts.h"

namespace snug::replay {
namespace {

// Bounds a search during training, which blocks the step or takes one of its cores.
constexpr plan::SearchOptions kInPassing{.simulated_ops = 500'000};

plan::Planner planner_for(const plan::StepGraph& graph, const std::string& strategy) {
  try {
    return {graph, strategy, kInPassing};
  } catch (const UsageError&) {
    return {graph, "optimal", kInPassing};  // the strategy asks for four blocks and this step has three, say
  }
}

}  // namespace

plan::MemoryPlan StepBook::unplanned(const plan::StepGraph& graph) const {
  plan::MemoryPlan plan = plan::make_plan(graph, "none", std::nullopt);
  plan.budget = budgets_.own ? budgets_.own->limit : 0;
  return plan;
}

void StepBook::add(plan::StepGraph graph, StepKind kind, Search search) {
  count_missing(graph);
  // The same optimizer step follows.
  const auto of_kind = std::ranges::find(known_, kind, &Known::kind);
  if (!known_.empty()) {
    const plan::StepGraph& like = of_kind != known_.end() ? *of_kind->graph : *known_.front().graph;
    if (like.update_seconds > 0) graph.end_with_update(like.all_update_bytes(), like.update_seconds);
    graph.moves = like.moves;
    // Others are in flight when it begins, and gradients come.
    if (kind == StepKind::MicroBatch && of_kind != known_.end()) {
      graph.static_bytes = like.static_bytes;
      graph.static_by_tag = like.static_by_tag;
    }
  }
  plan::keep_what_is_made_together(graph);  // planned by each process by itself
  auto step = std::make_shared<plan::StepGraph>(std::move(graph));
  // "none" takes no search, and is the fastest where it fits.
  Known known{.graph = step,
              .plan = nullptr,
              .planner = planner_for(*step, strategy_ == "optimal" ? "none" : strategy_),
              .kind = kind,
              .added = true};
  try {
    make_plan(known, step, search);
  } catch (const DoesNotFit&) {
    known.plan = std::make_shared<plan::MemoryPlan>(unplanned(*step));
    known.fits = false;
  }
  known_.insert(known_.begin(), std::move(known));
  forget_old();
}

/// Searches where keeping everything was enough so far and is no more.
void StepBook::make_plan(Known& known, const std::shared_ptr<const plan::StepGraph>& graph, Search search) {
  const auto has = [&](plan::MemoryPlan plan, bool fits) {
    known.plan = std::make_shared<plan::MemoryPlan>(std::move(plan));
    known.graph = graph;
    known.fits = fits;
  };
  try {
    has(known.planner.plan(*graph, budgets_), true);
    known.search = nullptr;
    return;
  } catch (const DoesNotFit&) {
    if (known.planner.strategy() != "none" || strategy_ == "none") throw;
  }
  if (known.search) return;
  if (search == Search::InBackground && strategy_ == "optimal" && asks_nobody()) {
    known.search = PlanSearch::start(*searches_, graph, budgets_, kInPassing);
    has(unplanned(*graph), false);
    return;
  }
  plan::Planner planner = planner_for(*graph, strategy_);
  has(planner.plan(*graph, budgets_), true);
  known.planner = std::move(planner);
}

void StepBook::take_searched(Known& known) {
  try {
    PlanSearch::Found found = std::exchange(known.search, nullptr)->take();
    known.planner = std::move(found.planner);
    if (!found.plan) return;
    known.plan = std::make_shared<plan::MemoryPlan>(*std::move(found.plan));
    known.fits = true;
  } catch (const std::bad_alloc&) {  // no memory for the search: evictions go on
  }
}

void StepBook::finish_searches() {
  for (const Known& known : known_) {
    if (known.search) known.search->wait();
  }
}

void StepBook::plan_stages_again(const std::vector<Known*>& stages, const std::vector<Now>& devices) {
  std::vector<std::shared_ptr<plan::StepGraph>> graphs;
  std::vector<plan::StageSteps> steps;
  for (const Known* const known : stages)
    steps.push_back({graphs.emplace_back(moved_to(*known->graph, devices)).get(), &known->planner});
  std::vector<plan::MemoryPlan> plans = plan::plan_stages(steps, budgets_);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    stages[i]->graph = std::move(graphs[i]);
    stages[i]->plan = std::make_shared<plan::MemoryPlan>(std::move(plans[i]));
  }
}

/// The one that ran last is expected; where no plan fits that any more, another may come that has one.
void StepBook::plan_again(StepKind kind, const std::vector<Now>& devices) {
  const auto expected = std::ranges::find(known_, kind, &Known::kind);
  if (const std::vector<Known*> all = stages(); expected->stage && !all.empty()) return plan_stages_again(all, devices);

  std::exception_ptr refusal;
  std::vector<Known*> misfits;
  for (Known& known : known_) {
    if (known.kind != kind) continue;
    if (!refusal || outdated(known, devices)) {
      try {
        plan_again(known, devices);
      } catch (const DoesNotFit&) {
        if (!refusal) refusal = std::current_exception();
        misfits.push_back(&known);
        continue;
      }
    }
    if (!refusal) return;
    if (!known.fits) continue;
    for (Known* const misfit : misfits) {
      misfit->graph = moved_to(*misfit->graph, devices);
      misfit->plan = std::make_shared<plan::MemoryPlan>(unplanned(*misfit->graph));
      misfit->fits = false;
    }
    return;
  }
  if (refusal) std::rethrow_exception(refusal);
}

void StepBook::plan_again(Known& known, const std::vector<Now>& devices) {
  const auto moved = moved_to(*known.graph, devices);
  try {
    make_plan(known, moved, Search::InThisThread);
  } catch (const DoesNotFit&) {
    if (known.fits) throw;
  }
}

std::shared_ptr<plan::StepGraph> StepBook::moved_to(const plan::StepGraph& graph,
                                                    const std::vector<Now>& devices) const {
  auto moved = std::make_shared<plan::StepGraph>(graph);
  for_each_part(*moved, budgets_, [&](std::size_t device, std::size_t, Bytes& bytes, memory::ByTag& by_tag) {
    if (device >= devices.size()) return;
    bytes = devices[device].stats.allocated;
    by_tag = devices[device].stats.by_tag;
  });
  count_missing(*moved);
  return moved;
}

}  // namespace snug::replay
