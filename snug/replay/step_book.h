#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "snug/memory/stats.h"
#include "snug/plan/budget.h"
#include "snug/plan/planner.h"
#include "snug/record/tape.h"

namespace snug::replay {

/// The steps that a session has seen, by their operators and shapes and by whether gradients were there before (then
/// backward adds to them, and takes no memory for new ones), each with a plan of its own. The one that ran last comes
/// first. Not synchronized.
class StepBook {
 public:
  /// With a first step. `state_to_come`: of its static bytes, what optimizers are yet to make. Throws DoesNotFit.
  /// `gradients`: of its static bytes, those of gradients that were there before.
  StepBook(plan::StepGraph graph, plan::Planner planner, std::optional<plan::Budget> budget, Bytes state_to_come = 0,
           Bytes gradients = 0);

  /// A step's first operator is about to run, with so much allocated, `gradients` of it in gradients. Plans the
  /// expected one again if that was planned when much less, or much more, was allocated outside of the step. Throws
  /// DoesNotFit when no plan fits it any more; one that none has ever fitted goes on with evictions.
  void begin(const memory::Stats& stats, Bytes gradients, bool accumulates);

  /// Whether a step like this, of whatever operators, has been seen.
  [[nodiscard]] bool expects(bool accumulates) const;

  /// Another step was recorded. Plans it by the strategy of the first, or by "optimal" where that does not suit it;
  /// where no plan fits it keeps everything, and eviction holds the cap. Becomes the first.
  void add(plan::StepGraph graph, bool accumulates);

  /// The step with this graph ran: it becomes the first.
  void ran(const plan::StepGraph* graph);

  /// What a tape may follow, the first step first: those that agree on `accumulates`, or all when none does.
  [[nodiscard]] std::vector<record::KnownStep> steps(bool accumulates) const;
  [[nodiscard]] const plan::StepGraph& graph() const { return *known_.front().graph; }
  [[nodiscard]] const plan::MemoryPlan& plan() const { return *known_.front().plan; }
  [[nodiscard]] const plan::Planner& planner() const { return known_.front().planner; }
  [[nodiscard]] std::size_t size() const noexcept { return known_.size(); }

 private:
  struct Known {
    std::shared_ptr<const plan::StepGraph> graph;
    std::shared_ptr<const plan::MemoryPlan> plan;
    plan::Planner planner;
    bool accumulates = false;
    bool fits = true;  // else it keeps everything, and evictions hold the cap
  };
  /// With the state that is yet to come.
  void count_state(plan::StepGraph& graph) const;
  /// Whether the memory outside of the step calls for another plan.
  [[nodiscard]] bool outdated(const Known& known, Bytes allocated) const;

  std::vector<Known> known_;
  std::optional<plan::Budget> budget_;
  Bytes state_to_come_ = 0;
  Bytes whole_ = 0;  // allocated before the first step, with that state and without gradients
};

}  // namespace snug::replay
