// Following a plan as operators arrive, going on with another known step, and with none.
#include "snug/record/plan_follower.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace snug::record {
namespace {

using Signatures = std::vector<std::uint64_t>;

/// A step of operators with these signatures; its plan does `action` with value 0, and has these segments.
KnownStep known(const Signatures& signatures, plan::Action action, std::vector<plan::SegmentRange> segments = {}) {
  auto graph = std::make_shared<plan::StepGraph>();
  for (const std::uint64_t s : signatures) {
    plan::OpInfo info;
    info.name = "op" + std::to_string(s);
    info.signature = s;
    graph->ops.push_back(std::move(info));
  }
  auto plan = std::make_shared<plan::MemoryPlan>();
  plan->actions = {action};
  plan->segments = std::move(segments);
  return {plan, graph};
}

/// The operators of a step, as they arrive at a follower.
class Step {
 public:
  explicit Step(Policy policy) : follower(std::move(policy)) {}

  /// Returns its segment.
  plan::SegmentId run(std::uint64_t signature) {
    Call call = calls.begin(op_, traits_of(op_), c10::DispatchKeySet(c10::DispatchKey::CPU));
    for (std::size_t i = 0; i < call.traits->arguments.size(); ++i) calls.add_constant({});
    calls.add(call, signature);
    const plan::SegmentId segment = follower.enter(flow, calls);
    flow.add_op({}, segment);
    return segment;
  }
  void run_all(const Signatures& signatures) {
    for (const std::uint64_t s : signatures) run(s);
  }
  [[nodiscard]] plan::Action action() const { return follower.action(0, plan::kMove); }

  plan::Dataflow flow;
  CallLog calls;
  PlanFollower follower;

 private:
  c10::OperatorHandle op_ = c10::Dispatcher::singleton().findSchemaOrThrow("aten::relu", "");
};

TEST(PlanFollower, HasNothingToSayWithoutAPlan) {
  PlanFollower follower(KeepSaved{});
  EXPECT_FALSE(follower.planned());
  EXPECT_EQ(follower.known_step(), nullptr);
  EXPECT_EQ(follower.action(0, plan::kMove), plan::kMove);
}

TEST(PlanFollower, FollowsWhileTheOperatorsAreThoseOfThePlan) {
  Step step(FollowPlan{{known({1, 2, 3}, plan::kKeep, {{1, 3}})}});
  EXPECT_EQ(step.run(1), plan::kRootSegment);
  const plan::SegmentId inner = step.run(2);
  EXPECT_NE(inner, plan::kRootSegment);
  EXPECT_EQ(step.run(3), inner);
  step.follower.finish(step.calls);
  EXPECT_EQ(step.action(), plan::kKeep);
  EXPECT_FALSE(step.follower.divergence().has_value());
}

TEST(PlanFollower, GoesOnWithAnotherStepThatBeganInTheSameWay) {
  const KnownStep other = known({1, 2, 4}, plan::kRecompute, {{2, 3}});
  Step step(FollowPlan{{known({1, 2, 3}, plan::kKeep), known({1, 5, 4}, plan::kKeep), other}});
  step.run_all({1, 2});
  EXPECT_EQ(step.action(), plan::kKeep);
  EXPECT_NE(step.run(4), plan::kRootSegment) << "the segments are the other plan's";
  EXPECT_EQ(step.follower.known_step()->graph, other.graph);
  EXPECT_EQ(step.action(), plan::kRecompute);
  step.follower.finish(step.calls);
  EXPECT_FALSE(step.follower.divergence().has_value());
}

TEST(PlanFollower, SaysWhereAStepDiffersFromAllKnownOnes) {
  Step step(FollowPlan{{known({1, 2, 3}, plan::kKeep), known({1, 2, 4}, plan::kKeep)}});
  step.run_all({1, 2, 9, 9});
  const auto& divergence = step.follower.divergence();
  ASSERT_TRUE(divergence.has_value());
  EXPECT_EQ(divergence->op, 2);
  EXPECT_EQ(divergence->expected, "op3()");
  EXPECT_EQ(divergence->found, "aten::relu()");
  EXPECT_EQ(step.follower.known_step(), nullptr);
  EXPECT_EQ(step.action(), plan::kMove) << "nobody's plan";
  EXPECT_TRUE(step.follower.planned()) << "its segments were a plan's";
}

TEST(PlanFollower, AStepThatGoesOnIsNotTheKnownOne) {
  Step step(FollowPlan{{known({1, 2}, plan::kKeep)}});
  step.run_all({1, 2, 3});
  ASSERT_TRUE(step.follower.divergence().has_value());
  EXPECT_EQ(step.follower.divergence()->expected, "the end of the step");
}

TEST(PlanFollower, AStepThatEndsEarlyIsTheOneThatEndsThere) {
  const KnownStep shorter = known({1, 2}, plan::kRecompute);
  Step step(FollowPlan{{known({1, 2, 3}, plan::kKeep), known({1, 2, 4}, plan::kKeep), shorter}});
  step.run_all({1, 2});
  step.follower.finish(step.calls);
  EXPECT_EQ(step.follower.known_step()->graph, shorter.graph);
  EXPECT_FALSE(step.follower.divergence().has_value());
}

TEST(PlanFollower, AStepThatEndsWhereNoneDoesHasDiverged) {
  Step step(FollowPlan{{known({1, 2, 3}, plan::kKeep), known({1, 2, 4}, plan::kKeep)}});
  step.run_all({1, 2});
  step.follower.finish(step.calls);
  ASSERT_TRUE(step.follower.divergence().has_value());
  EXPECT_EQ(step.follower.divergence()->op, 2);
  EXPECT_EQ(step.follower.divergence()->expected, "op3");
  EXPECT_EQ(step.follower.divergence()->found, "the end of the step");
}

TEST(PlanFollower, TakesThePlanThatIsDecidedLater) {
  PlanFollower follower(DecideLater{[] { return DecideLater::Decision{}; }});
  EXPECT_NE(follower.undecided(), nullptr);
  EXPECT_FALSE(follower.planned());
  follower.decide(FollowPlan{{known({1}, plan::kKeep)}});
  EXPECT_EQ(follower.undecided(), nullptr);
  EXPECT_TRUE(follower.planned());
  EXPECT_EQ(follower.action(0, plan::kMove), plan::kKeep);
  PlanFollower given_up(DecideLater{[] { return DecideLater::Decision{}; }});
  given_up.give_up_deciding();
  EXPECT_EQ(given_up.undecided(), nullptr);
}

}  // namespace
}  // namespace snug::record
