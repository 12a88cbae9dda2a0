#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "snug/memory/host_threads.h"
#include "snug/memory/stats.h"
#include "snug/plan/budget.h"
#include "snug/plan/planner.h"
#include "snug/record/tape.h"
#include "snug/replay/agreement.h"
#include "snug/replay/outside_memory.h"
#include "snug/replay/plan_search.h"
#include "snug/replay/planned_step.h"

namespace snug::replay {

/// The steps that a session knows, by their operators and shapes and by their kind, each with a plan of its own. The
/// one that ran last comes first. Not synchronized.
class StepBook {
 public:
  /// With the steps that were recorded before, the one that shares and plans are of in front. `gradients`: of its
  /// static bytes, by device in the order of the budgets, those of gradients that were there before and are none of the
  /// step's own; none where there are fewer. Throws DoesNotFit when one of them does not fit, with the highest floor of
  /// those; Error when that is so in another process of the group; UsageError when none of them goes backward.
  StepBook(std::vector<PlannedStep> kinds, plan::Budgets budgets, const std::vector<Bytes>& gradients = {},
           std::shared_ptr<Agreement> agreement = alone());

  /// Without any yet. The first that is added shares and plans are of then.
  StepBook(std::string strategy, plan::Budgets budgets, std::shared_ptr<Agreement> agreement = alone());

  /// What a device has allocated, and of that in gradients.
  struct Now {
    memory::Stats stats;
    Bytes gradients = 0;
  };
  /// A step's first operator is about to run. `devices`: in the order of the budgets. Plans the expected one again if
  /// that was planned when much less, or much more, was allocated outside of the step, or if another process of the
  /// group does so. Throws DoesNotFit when no plan fits it any more, and Error when that is so in another process; one
  /// that none has ever fitted, or that none fits any more while another of the kind has a plan, goes on with
  /// evictions. Without a budget nothing is planned again, and the group is asked all the same.
  void begin(const std::vector<Now>& devices, StepKind kind);

  /// Whether a step of this kind, of whatever operators, is known.
  [[nodiscard]] bool expects(StepKind kind) const;

  /// Where add() searches. A group's processes search in the calling thread, as they do it together.
  enum class Search : std::uint8_t { InThisThread, InBackground };
  /// Another step was recorded. Plans it by the strategy of the first, or by "optimal" where that does not suit it. A
  /// step that fits with everything kept needs no search. Where no plan fits, and until a search in the background is
  /// over, everything is kept, and eviction holds the cap. Becomes the first. Of more than 64 steps those that ran
  /// longest ago are forgotten where all have over 250,000 operators together.
  void add(plan::StepGraph graph, StepKind kind, Search search);

  /// Waits for the searches in the background; begin() takes what they found, as far as they are over.
  void finish_searches();

  /// The step with this graph ran: it becomes the first. Returns whether it is one that was added.
  bool ran(const plan::StepGraph* graph);

  /// What a tape may follow, the first step first: those of this kind, or all when there is none.
  [[nodiscard]] std::vector<record::KnownStep> steps(StepKind kind) const;
  /// Of the one that ran last. These throw UsageError where there is none.
  [[nodiscard]] const plan::StepGraph& graph() const { return *last().graph; }
  [[nodiscard]] const plan::MemoryPlan& plan() const { return *last().plan; }
  /// Nullptr where the step fits with everything kept, so that the session's strategy has not been asked.
  [[nodiscard]] const plan::Planner* planner() const {
    const plan::Planner& planner = last().planner;
    return planner.strategy() == "none" && strategy_ != "none" ? nullptr : &planner;
  }
  /// Whether a plan holds the cap in that step; else it keeps everything, and evictions do.
  [[nodiscard]] bool fits() const { return last().fits; }
  /// Whether a plan for it is being searched in the background.
  [[nodiscard]] bool is_searching() const { return last().search != nullptr; }
  /// The highest of those that fit, and of those that only evaluate; of the one that ran last where there is none.
  [[nodiscard]] Bytes predicted_peak() const;
  /// The highest that any of them that trains would have without a plan.
  [[nodiscard]] Bytes unplanned_peak() const;
  [[nodiscard]] std::size_t size() const noexcept { return known_.size(); }
  /// The forward pass is over, and was that of this known step up to the operator where it `differed`, if it did, or of
  /// none (nullptr). Throws Error, in all processes, where steps make something again together with others, and theirs
  /// was another one.
  void forward_over(const plan::StepGraph* followed, std::optional<plan::OpId> differed) const;
  /// Whether it decides by itself.
  [[nodiscard]] bool asks_nobody() const noexcept { return processes_ == 1; }

 private:
  struct Known {
    std::shared_ptr<const plan::StepGraph> graph;
    std::shared_ptr<const plan::MemoryPlan> plan;
    plan::Planner planner;
    StepKind kind = StepKind::First;
    bool fits = true;    // else it keeps everything, and evictions hold the cap
    bool stage = false;  // of one step with others, all of which are in flight at the same time
    bool added = false;
    std::shared_ptr<PlanSearch> search{};  // in the background
  };
  [[nodiscard]] const Known& last() const;
  void forget_old();
  /// Throws DoesNotFit, and leaves it as it was, where it has none and none is searched in the background.
  void make_plan(Known& known, const std::shared_ptr<const plan::StepGraph>& graph, Search search);
  static void take_searched(Known& known);
  /// Those whose micro-batches are in flight at the same time; none where there is one.
  [[nodiscard]] std::vector<Known*> stages();
  void count_others_held();
  void plan_stages_again(const std::vector<Known*>& stages, const std::vector<Now>& devices);

  void plan_again(StepKind kind, const std::vector<Now>& devices);
  void plan_again(Known& known, const std::vector<Now>& devices);
  /// The step beside what is there now.
  [[nodiscard]] std::shared_ptr<plan::StepGraph> moved_to(const plan::StepGraph& graph,
                                                          const std::vector<Now>& devices) const;
  /// What `plan` is refused with, if it is. Anything else that it throws is told to the group, and thrown.
  [[nodiscard]] std::exception_ptr refusal_of(const std::function<void()>& plan) const;
  /// Throws `refusal`, which may be none, or Error when another process of the group has one.
  void agree(const std::exception_ptr& refusal);
  /// Throws Error where steps make something again together with other processes and these have other plans.
  void check_same_plans() const;
  [[nodiscard]] std::vector<Now> most_of_all(std::vector<Now> devices);
  /// With what is yet to come of state, and beside the steps.
  void count_missing(plan::StepGraph& graph) const;
  /// Whether the memory outside of the step calls for another plan.
  [[nodiscard]] bool outdated(const Known& known, const std::vector<Now>& devices) const;
  [[nodiscard]] bool has_budget() const { return budgets_.own || !budgets_.others.empty(); }
  /// Everything is kept, and evictions hold the caps.
  [[nodiscard]] plan::MemoryPlan unplanned(const plan::StepGraph& graph) const;

  std::string strategy_;
  // Before the steps, whose searches are skipped that have not begun when they go.
  std::unique_ptr<memory::HostThreads> searches_ = std::make_unique<memory::HostThreads>(1);
  std::vector<Known> known_;
  plan::Budgets budgets_;
  std::shared_ptr<Agreement> agreement_;
  std::size_t processes_ = 1;           // of the group
  Bytes of_evaluation_ = 0;             // the highest peak of steps that only evaluate
  std::vector<OutsideMemory> outside_;  // by device, in the order of the budgets
  bool replays_together_ = false;       // some of the steps that all have planned alike
};

}  // namespace snug::replay
