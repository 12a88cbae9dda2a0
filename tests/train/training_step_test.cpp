// The training step: its kinds, as they are recorded and as they run.
#include "snug/train/training_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/run/presets.h"
#include "snug/record/random_state.h"
#include "snug/train/planned_experiment.h"
#include "tests/train/two_blocks.h"

namespace snug::train {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(PlanExperiment, RecordsTheEvaluationOnlyWhereABudgetMayRefuseIt) {
  Config config = two_blocks("budgets");
  Experiment free(config);
  EXPECT_EQ(plan_experiment(free, Kinds::Run).kinds.size(), 1U);
  config.memory.budget = plan::Percent{80};
  Experiment capped(config);
  EXPECT_EQ(plan_experiment(capped, Kinds::Run).kinds.size(), 2U);
  EXPECT_EQ(plan_experiment(capped, Kinds::Training).kinds.size(), 1U);
}

TEST(TrainingStep, IsRecordedWithTheEvaluationOfARunThatValidates) {
  Config config = two_blocks("kinds");
  Experiment experiment(config);
  TrainingStep step(experiment);
  const auto kinds = step.record_all(experiment.train_batch(0), std::nullopt);
  ASSERT_EQ(kinds.size(), 2U);
  EXPECT_EQ(kinds[0].kind, replay::StepKind::First);
  EXPECT_EQ(kinds[1].kind, replay::StepKind::Evaluation);
  EXPECT_TRUE(experiment.model().is_training()) << "recording leaves no trace";
  config.train.validation_batches = 0;
  Experiment without(config);
  EXPECT_EQ(TrainingStep(without).record_all(without.train_batch(0), std::nullopt).size(), 1U);
}

TEST(TrainingStep, TheEvaluationOfARunTakesWhatItsRecordingSays) {
  Config config = two_blocks("evaluation");
  config.memory.budget = plan::Percent{100};
  Experiment experiment(config);
  const PlannedExperiment planned = plan_experiment(experiment, Kinds::Run);
  const plan::StepGraph& evaluation = planned.kinds.back().step.graph;
  Session session(planned.kinds, planned.budget, testing::test_memory());
  TrainingStep step(experiment);
  for (int i = 0; i < 2; ++i) {
    step.make_gradients(session, experiment.train_batch(i), i, i);
    step.update(i);
  }
  const auto batch = experiment.validation_sample();
  testing::test_memory().reset_peak();
  (void)experiment.evaluate(*batch);
  const Bytes predicted = plan::plan_none(evaluation).predicted_peak;
  EXPECT_LE(testing::test_memory().stats().allocated_peak, predicted);
  EXPECT_GE(testing::test_memory().stats().allocated_peak, predicted - 64_KiB);
}

TEST(TrainingStep, AnEvaluationAsksForNoMoreThanTheTrainingStepWhichMakesGradients) {
  Config config = two_blocks("floors");
  config.memory.budget = plan::Percent{100};
  Experiment experiment(config);
  PlannedExperiment planned = plan_experiment(experiment, Kinds::Run);
  const Bytes both = replay::smallest_budget(planned.kinds);
  planned.kinds.pop_back();
  EXPECT_EQ(replay::smallest_budget(planned.kinds), both);
}

TEST(TrainingStep, UnderAPlanItIsThePlainOne) {
  Config config = two_blocks("plain");
  config.memory.budget = plan::Percent{80};
  Experiment experiment(config);
  TrainingStep step(experiment);
  Session session = plan_session(experiment, Kinds::Training);
  const data::Batch batch = experiment.train_batch(0);
  const auto gradients = [&] {
    std::vector<at::Tensor> all;
    for (const at::Tensor& p : experiment.optimizer().parameters()) all.push_back(p.grad().clone());
    step.forget_gradients();
    return all;
  };
  torch::manual_seed(3);
  const at::Tensor loss = step.backward(session, batch, 0);
  EXPECT_GT(session.last_step().replayed_ops, 0);
  testing::test_memory().set_limit(std::nullopt);
  const auto planned = gradients();
  torch::manual_seed(3);
  EXPECT_TRUE(at::equal(step.backward_plain(batch, 0), loss));
  const auto plain = gradients();
  ASSERT_EQ(plain.size(), planned.size());
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(plain[i], planned[i])) << i;
}

TEST(TrainingStep, WhatFailsLeavesWeightsAndRandomGeneratorAsTheyWere) {
  Experiment experiment(two_blocks("fails"));
  TrainingStep step(experiment);
  Session session = plan_session(experiment, Kinds::Training);
  const auto random = [&] { return record::save_random_state(experiment.generator()).state; };
  at::Tensor weight = experiment.optimizer().parameters().front();
  const at::Tensor random_before = random(), weight_before = weight.detach().clone();
  weight.register_hook([](const at::Tensor& gradient) { return gradient * std::numeric_limits<float>::infinity(); });
  const data::Batch batch = experiment.train_batch(0);
  EXPECT_THAT([&] { step.make_gradients(session, batch, 4, 4); },
              ThrowsMessage<Error>(HasSubstr("the norm of the gradients of step 5")));
  EXPECT_TRUE(at::equal(random(), random_before));
  EXPECT_TRUE(at::equal(weight.detach(), weight_before));
}

}  // namespace
}  // namespace snug::train
