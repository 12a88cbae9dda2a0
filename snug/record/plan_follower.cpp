#include "snug/record/plan_follower.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "snug/plan/step/together.h"

namespace snug::record {
namespace {

/// Whether the operators of a known step begin with those of the log.
bool begins_so(const KnownStep& step, const CallLog& calls) {
  const auto& ops = step.graph->ops;
  const auto signatures = calls.signatures();
  return ops.size() >= signatures.size() &&
         std::equal(signatures.begin(), signatures.end(), ops.begin(),
                    [](std::uint64_t signature, const plan::OpInfo& op) { return op.signature == signature; });
}

/// Whether they are those of the log.
bool is_so(const KnownStep& step, const CallLog& calls) {
  return step.graph->ops.size() == calls.signatures().size() && begins_so(step, calls);
}

}  // namespace

PlanFollower::PlanFollower(Policy policy) : policy_(std::move(policy)) { take_segments(); }

void PlanFollower::take_segments() {
  if (const KnownStep* known = known_step()) segments_.emplace(known->plan->segments);
}

void PlanFollower::decide(std::variant<KeepSaved, FollowPlan> policy) {
  std::visit([this](auto& chosen) { policy_ = std::move(chosen); }, policy);
  take_segments();
}

void PlanFollower::give_up_deciding() noexcept {
  if (undecided() != nullptr) policy_ = KeepSaved{};
}

plan::SegmentId PlanFollower::enter(plan::Dataflow& flow, const CallLog& calls) {
  compare(calls);
  return segments_->enter(flow, calls.size() - 1);
}

void PlanFollower::compare(const CallLog& calls) {
  const KnownStep* known = known_step();
  if (known == nullptr) return;
  const plan::OpId op = calls.size() - 1;
  const auto& planned = known->graph->ops;
  const bool over = plan::at(op) >= planned.size();
  if (!over && planned[plan::at(op)].signature == calls.signature(op)) return;
  if (follow_another(begins_so, calls)) return;
  const Call& call = calls.call(op);
  std::string found = fmt::format("{}({})", call.traits->name, calls.inputs_of(call));
  if (over) {
    divergence_ = Divergence{op, "the end of the step", std::move(found)};
  } else {
    const plan::OpInfo& info = planned[plan::at(op)];
    std::string expected = fmt::format("{}({})", info.name, info.inputs);
    if (expected == found) found = "the same with other values";
    divergence_ = Divergence{op, std::move(expected), std::move(found)};
  }
  policy_ = KeepSaved{};
}

void PlanFollower::finish(const CallLog& calls) {
  const KnownStep* known = known_step();
  if (known == nullptr || plan::at(calls.size()) >= known->graph->ops.size()) return;
  if (follow_another(is_so, calls)) return;
  divergence_ = Divergence{calls.size(), known->graph->ops[plan::at(calls.size())].name, "the end of the step"};
}

/// The step is not the one that was followed: goes on with another known one that agrees, if any.
bool PlanFollower::follow_another(Agrees& agrees, const CallLog& calls) {
  auto& steps = std::get<FollowPlan>(policy_).steps;
  // What the plan so far has left absent all make again together, by that plan alone.
  if (plan::may_replay_together(*steps.front().graph, calls.size() - 1)) return false;
  const auto other =
      std::find_if(steps.begin() + 1, steps.end(), [&](const KnownStep& step) { return agrees(step, calls); });
  if (other == steps.end()) return false;
  std::rotate(steps.begin(), other, other + 1);
  take_segments();
  return true;
}

}  // namespace snug::record
