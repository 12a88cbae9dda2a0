#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "snug/memory/stats.h"
#include "snug/plan/budget.h"
#include "snug/plan/planner.h"
#include "snug/record/tape.h"
#include "snug/replay/agreement.h"
#include "snug/replay/planned_step.h"

namespace snug::replay {

/// The steps that a session knows, by their operators and shapes and by their kind, each with a plan of its own. The
/// one that ran last comes first. Not synchronized.
class StepBook {
 public:
  /// With the steps that were recorded before, the one that shares and plans are of in front. `gradients`: of its
  /// static bytes, those of gradients that were there before and are none of the step's own. Throws DoesNotFit when one
  /// of them does not fit, with the highest floor of those; Error when that is so in another process of the group;
  /// UsageError when none of them goes backward.
  StepBook(std::vector<PlannedStep> kinds, std::optional<plan::Budget> budget, Bytes gradients = 0,
           std::shared_ptr<Agreement> agreement = alone());

  /// A step's first operator is about to run, with so much allocated, `gradients` of it in gradients. Plans the
  /// expected one again if that was planned when much less, or much more, was allocated outside of the step, or if
  /// another process of the group does so. Throws DoesNotFit when no plan fits it any more, and Error when that is so
  /// in another process; one that none has ever fitted, or that none fits any more while another of the kind has a
  /// plan, goes on with evictions. Without a budget nothing is planned again, and the group is asked all the same.
  void begin(const memory::Stats& stats, Bytes gradients, StepKind kind);

  /// Whether a step of this kind, of whatever operators, is known.
  [[nodiscard]] bool expects(StepKind kind) const;

  /// Another step was recorded. Plans it by the strategy of the first, or by "optimal" where that does not suit it;
  /// where no plan fits it keeps everything, and eviction holds the cap. Becomes the first. Of more than 64 steps those
  /// that ran longest ago are forgotten where all have over 250,000 operators together.
  void add(plan::StepGraph graph, StepKind kind);

  /// The step with this graph ran: it becomes the first.
  void ran(const plan::StepGraph* graph);

  /// What a tape may follow, the first step first: those of this kind, or all when there is none.
  [[nodiscard]] std::vector<record::KnownStep> steps(StepKind kind) const;
  [[nodiscard]] const plan::StepGraph& graph() const { return *known_.front().graph; }
  [[nodiscard]] const plan::MemoryPlan& plan() const { return *known_.front().plan; }
  [[nodiscard]] const plan::Planner& planner() const { return known_.front().planner; }
  /// Whether a plan holds the cap in the first of them; else it keeps everything, and evictions do.
  [[nodiscard]] bool fits() const { return known_.front().fits; }
  /// The highest of those that fit, and of those that only evaluate; of the first where there is none.
  [[nodiscard]] Bytes predicted_peak() const;
  [[nodiscard]] std::size_t size() const noexcept { return known_.size(); }
  /// Whether it decides by itself.
  [[nodiscard]] bool asks_nobody() const noexcept { return agreement_ == alone(); }

 private:
  struct Known {
    std::shared_ptr<const plan::StepGraph> graph;
    std::shared_ptr<const plan::MemoryPlan> plan;
    plan::Planner planner;
    StepKind kind = StepKind::First;
    bool fits = true;  // else it keeps everything, and evictions hold the cap
  };
  void forget_old();
  void plan_again(StepKind kind, const memory::Stats& stats);
  void plan_again(Known& known, const memory::Stats& stats);
  /// The step beside what is there now.
  [[nodiscard]] std::shared_ptr<const plan::StepGraph> moved_to(const plan::StepGraph& graph,
                                                                const memory::Stats& stats) const;
  /// What `plan` is refused with, if it is. Anything else that it throws is told to the group, and thrown.
  [[nodiscard]] std::exception_ptr refusal_of(const std::function<void()>& plan) const;
  /// Throws `refusal`, which may be none, or Error when another process of the group has one.
  void agree(const std::exception_ptr& refusal) const;
  /// With what is yet to come of state, and beside the steps.
  void count_missing(plan::StepGraph& graph) const;
  /// Whether the memory outside of the step calls for another plan.
  [[nodiscard]] bool outdated(const Known& known, Bytes allocated) const;

  std::vector<Known> known_;
  std::optional<plan::Budget> budget_;
  std::shared_ptr<Agreement> agreement_;
  Bytes of_evaluation_ = 0;  // the highest peak of steps that only evaluate
  Bytes state_to_come_ = 0;
  Bytes beside_ = 0;   // that others may hold beside the steps
  Bytes missing_ = 0;  // of that, now
  Bytes whole_ = 0;    // allocated before the first step, with all of these and without gradients
};

}  // namespace snug::replay
