#pragma once

#include <future>
#include <memory>
#include <optional>

#include "snug/memory/host_threads.h"
#include "snug/plan/budget.h"
#include "snug/plan/planner.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug::replay {

/// A search for a plan of one step, on another thread. A queued search is skipped if nobody holds the PlanSearch when
/// its turn comes.
class PlanSearch {
 public:
  struct Found {
    plan::Planner planner;
    std::optional<plan::MemoryPlan> plan;  ///< none where no plan fits the budgets
  };

  /// By "optimal". Throws Error where the system has no thread for it, and in a process that was forked since `threads`
  /// was made.
  static std::shared_ptr<PlanSearch> start(memory::HostThreads& threads, std::shared_ptr<const plan::StepGraph> graph,
                                           plan::Budgets budgets, plan::SearchOptions options);

  [[nodiscard]] bool is_over() const;
  void wait() const { over_.wait(); }
  /// Waits for it. Throws what the search threw. Once.
  Found take();

 private:
  std::optional<Found> found_;
  std::shared_future<void> over_;
};

}  // namespace snug::replay
