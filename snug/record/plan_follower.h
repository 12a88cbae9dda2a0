#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "snug/plan/step/dataflow.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/segments.h"
#include "snug/plan/step/step_graph.h"
#include "snug/record/call_log.h"
#include "snug/record/tape_observer.h"

namespace snug::record {

/// The policy to hold whatever autograd saves, as PyTorch does.
struct KeepSaved {};
/// The policy of a pass that nobody goes backward through: leaves, of which nothing is made again, are not held.
struct KeepNothing {};
/// A step that was recorded before, and its plan.
struct KnownStep {
  std::shared_ptr<const plan::MemoryPlan> plan;
  std::shared_ptr<const plan::StepGraph> graph;
};
/// The policy to do what the first plan says, as long as the step is the one that it is for; then what another one says
/// whose step began in the same way; and as KeepSaved when there is none.
struct FollowPlan {
  std::vector<KnownStep> steps;  ///< not empty
};
/// Either of those policies, as `decide` says when the step's first operator runs: only then it shows whether gradients
/// are there.
struct DecideLater {
  struct Decision {
    std::variant<KeepSaved, FollowPlan> policy;
    std::shared_ptr<TapeObserver> observer = nullptr;
  };
  std::function<Decision()> decide;  ///< may throw; is asked again then
};
/// What a tape holds of the values that regions say nothing about.
using Policy = std::variant<KeepSaved, KeepNothing, FollowPlan, DecideLater>;

/// Where a step first differed from its plan.
struct Divergence {
  plan::OpId op = 0;
  std::string expected;
  std::string found;
};

/// Follows the plan of a known step, as the operators of a step arrive: compares each with the one that was recorded,
/// goes on with another known step where it differs, and with none where no other one agrees. Not synchronized.
class PlanFollower {
 public:
  explicit PlanFollower(Policy policy);

  [[nodiscard]] bool keeps_nothing() const noexcept { return std::holds_alternative<KeepNothing>(policy_); }
  /// What still has to be asked, before anything else, for the policy; nullptr when that is known.
  [[nodiscard]] const DecideLater* undecided() const noexcept { return std::get_if<DecideLater>(&policy_); }
  /// The answer.
  void decide(std::variant<KeepSaved, FollowPlan> policy);
  /// Where there has been no answer, none is wanted any more: the policy is KeepSaved.
  void give_up_deciding() noexcept;

  /// Whether there is, or was, a plan: the step's segments are the plan's then, and not the regions'.
  [[nodiscard]] bool planned() const noexcept { return segments_.has_value(); }
  /// The known step that this one is, so far; null when it is none of them.
  [[nodiscard]] const KnownStep* known_step() const noexcept {
    const auto* follow = std::get_if<FollowPlan>(&policy_);
    return follow != nullptr ? &follow->steps.front() : nullptr;
  }
  /// Where the step first differed from all known ones.
  [[nodiscard]] const std::optional<Divergence>& divergence() const noexcept { return divergence_; }

  /// The newest call of the log has arrived, the next one to be added to `flow`. Returns its segment; there must be a
  /// plan.
  plan::SegmentId enter(plan::Dataflow& flow, const CallLog& calls);
  /// What the plan says of a value, or `otherwise` where none is followed.
  [[nodiscard]] plan::Action action(plan::ValueId value, plan::Action otherwise) const {
    const KnownStep* known = known_step();
    if (known == nullptr) return otherwise;
    const plan::Action action = known->plan->action(value);
    if (!plan::is_compressed(action)) return action;
    const bool is_known = plan::at(value) < known->graph->values.size();
    return is_known ? plan::as_possible(action, known->graph->values[plan::at(value)].encodings) : plan::kKeep;
  }
  /// No further operator comes.
  void finish(const CallLog& calls);

 private:
  using Agrees = bool(const KnownStep& step, const CallLog& calls);
  bool follow_another(Agrees& agrees, const CallLog& calls);
  void compare(const CallLog& calls);
  void take_segments();

  Policy policy_;
  std::optional<plan::SegmentCursor> segments_;
  std::optional<Divergence> divergence_;
};

}  // namespace snug::record
