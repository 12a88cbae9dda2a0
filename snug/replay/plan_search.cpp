#include "snug/replay/plan_search.h"

#include <chrono>
#include <utility>

#include "snug/plan/does_not_fit.h"

namespace snug::replay {
namespace {

PlanSearch::Found found_for(const plan::StepGraph& graph, const plan::Budgets& budgets, plan::SearchOptions options) {
  PlanSearch::Found found{.planner = {graph, "optimal", options}, .plan = std::nullopt};
  try {
    found.plan = found.planner.plan(graph, budgets);
  } catch (const DoesNotFit&) {  // NOLINT(bugprone-empty-catch): said by an empty plan
  }
  return found;
}

}  // namespace

std::shared_ptr<PlanSearch> PlanSearch::start(memory::HostThreads& threads,
                                              std::shared_ptr<const plan::StepGraph> graph, plan::Budgets budgets,
                                              plan::SearchOptions options) {
  auto search = std::make_shared<PlanSearch>();
  search->over_ =
      threads.run([graph = std::move(graph), budgets = std::move(budgets), options, result = std::weak_ptr(search)] {
        if (const auto kept = result.lock()) kept->found_ = found_for(*graph, budgets, options);
      });
  return search;
}

bool PlanSearch::is_over() const { return over_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

PlanSearch::Found PlanSearch::take() {
  over_.get();
  return *std::exchange(found_, std::nullopt);
}

}  // namespace snug::replay
