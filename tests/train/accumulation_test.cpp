// Micro-batches: the gradients of one large batch, in the memory of a small one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/plan/run/presets.h"
#include "snug/train/planned_experiment.h"
#include "snug/train/training_step.h"
#include "tests/base/fault.h"
#include "tests/train/two_blocks.h"

namespace snug::train {
namespace {

using snug::testing::fault;
using ::testing::HasSubstr;

/// Without dropout, which draws other masks for other batches.
Config accumulating(const std::string& name, std::int64_t parts) {
  Config config = two_blocks("accumulation/" + name);
  config.model.own.set("dropout", 0.0);
  config.train.batch = 16;
  config.train.accumulate = parts;
  return config;
}

std::vector<at::Tensor> gradients_of(Experiment& experiment) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& p : experiment.optimizer().parameters()) all.push_back(p.grad().clone());
  return all;
}

/// Targets that count: half of the second row, none of the third, all but one of the fourth, all of the others.
data::Batch masked(data::Batch batch) {
  batch.target = batch.target.clone();
  batch.target[1].slice(0, 32).fill_(data::kNoTarget);
  batch.target[2].fill_(data::kNoTarget);
  batch.target[3].slice(0, 1).fill_(data::kNoTarget);
  return batch;
}

TEST(MicroBatches, AreViewsWeighedByTheirTargets) {
  const data::Batch batch{at::arange(32).view({4, 8}), at::ones({4, 8}, at::kLong)};
  EXPECT_TRUE(micro_batches(batch, 1).front().batch.input.is_same(batch.input));
  auto micros = micro_batches(batch, 2);
  ASSERT_EQ(micros.size(), 2U);
  EXPECT_EQ(micros[1].batch.input.data_ptr(), batch.input[2].data_ptr());
  EXPECT_EQ(micros[0].share, 0.5);
  batch.target[0].fill_(data::kNoTarget);
  batch.target[1].fill_(data::kNoTarget);
  batch.target[2].slice(0, 1).fill_(data::kNoTarget);
  micros = micro_batches(batch, 4);
  ASSERT_EQ(micros.size(), 2U) << "one without a target has no mean";
  EXPECT_EQ(micros[0].share, 1.0 / 9);
  EXPECT_EQ(micros[1].share, 8.0 / 9);
  batch.target.fill_(data::kNoTarget);
  EXPECT_THAT(fault([&] { (void)micro_batches(batch, 2); }), HasSubstr("all 32 targets of a batch are -100"));
}

TEST(Accumulation, HasTheGradientsOfTheLargeBatchAlsoWhereRowsAreUneven) {
  for (const bool uneven : {false, true}) {
    Experiment whole(accumulating("whole", 1));
    const data::Batch batch = uneven ? masked(whole.train_batch(0)) : whole.train_batch(0);
    const at::Tensor loss = TrainingStep(whole).backward_plain(batch, 0);
    const auto expected = gradients_of(whole);
    for (const std::int64_t parts : {2, 4}) {
      Experiment divided(accumulating("divided", parts));
      EXPECT_NEAR(TrainingStep(divided).backward_plain(batch, 0).item<double>(), loss.item<double>(), 1e-6);
      const auto found = gradients_of(divided);
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-4, 1e-6)) << i;
    }
  }
}

TEST(Accumulation, IsPlannedAsALaterMicroBatchAndAFirst) {
  Experiment experiment(accumulating("kinds", 4));
  TrainingStep step(experiment);
  const auto kinds = step.record_all(experiment.train_batch(0), std::nullopt);
  ASSERT_EQ(kinds.size(), 3U);
  EXPECT_EQ(kinds[0].kind, replay::StepKind::Later);
  EXPECT_EQ(kinds[1].kind, replay::StepKind::First);
  EXPECT_EQ(kinds[2].kind, replay::StepKind::Evaluation);
  Bytes gradients = 0;
  for (const at::Tensor& p : experiment.optimizer().parameters()) {
    EXPECT_FALSE(p.grad().defined()) << "recording leaves no trace";
    gradients += testing::test_memory().rounded(static_cast<Bytes>(p.nbytes()));
  }
  EXPECT_EQ(kinds[0].passing.front().gradients, gradients);
  EXPECT_EQ(kinds[0].graph.static_bytes - kinds[1].graph.static_bytes, gradients);
  EXPECT_GT(kinds[0].graph.update_seconds, 0) << "the last has the update";
  EXPECT_EQ(kinds[1].graph.update_seconds, 0);
}

TEST(Accumulation, OfUpdatesInBackwardHasAPlanForTheLastMicroBatch) {
  Config config = accumulating("last", 4);
  config.optimizer.clip_norm = 0;
  config.optimizer.in_backward = true;
  Experiment experiment(config);
  TrainingStep step(experiment);
  const std::vector<replay::PlannedStep> planned = plan_experiment(experiment, Kinds::Training).kinds;
  ASSERT_EQ(planned.size(), 3U);
  EXPECT_EQ(planned[0].step.kind, replay::StepKind::Last);
  EXPECT_EQ(planned[1].step.kind, replay::StepKind::Later);
  EXPECT_EQ(planned[2].step.kind, replay::StepKind::First);
  EXPECT_EQ(planned[0].step.passing.front().gradients, planned[1].step.passing.front().gradients);
  Bytes predicted = 0;
  for (const plan::MemoryPlan& plan : replay::plan_all(planned, std::nullopt))
    predicted = std::max(predicted, plan.predicted_peak);
  Session session(planned, std::nullopt, testing::test_memory());
  for (int i = 0; i < 2; ++i) {
    testing::test_memory().reset_peak();
    (void)step.make_gradients(session, experiment.train_batch(i), i, i);
    EXPECT_EQ(step.last().divergence, "");
    EXPECT_NEAR(static_cast<double>(testing::test_memory().stats().allocated_peak), static_cast<double>(predicted),
                1e-3 * static_cast<double>(predicted));
  }
}

class AccumulationUnder : public ::testing::TestWithParam<double> {};
INSTANTIATE_TEST_SUITE_P(Shares, AccumulationUnder, ::testing::Values(100.0, 85.0));

TEST_P(AccumulationUnder, FollowsItsPlansWithinTheBudgetBitForBit) {
  Config config = accumulating("planned", 4);
  config.model.own.set("dropout", 0.1);
  config.memory.budget = plan::Percent{GetParam()};
  Experiment experiment(config);
  TrainingStep step(experiment);
  Session session = plan_session(experiment, Kinds::Run);
  const Bytes budget = session.plan().budget;
  for (int i = 0; i < 3; ++i) {
    const data::Batch batch = i == 1 ? masked(experiment.train_batch(i)) : experiment.train_batch(i);
    torch::manual_seed(i);
    testing::test_memory().set_limit(std::nullopt);
    const at::Tensor plain_loss = step.backward_plain(batch, 0);
    const auto plain = gradients_of(experiment);
    step.forget_gradients();
    testing::test_memory().release_cached();
    testing::test_memory().set_limit(budget + static_cast<Bytes>(plain.size()) * 1_MiB);  // for the copies
    torch::manual_seed(i);
    const at::Tensor loss = step.backward(session, batch, 0);
    EXPECT_TRUE(at::equal(loss, plain_loss));
    EXPECT_EQ(step.last().divergence, "");
    EXPECT_EQ(step.last().evictions, 0);
    EXPECT_GT(step.last().replayed_ops, GetParam() < 100 ? 20 : -1);
    const auto planned = gradients_of(experiment);
    for (std::size_t k = 0; k < plain.size(); ++k) ASSERT_TRUE(at::equal(plain[k], planned[k])) << i << " " << k;
    step.clip();
    step.update(i);
  }
}

TEST(Accumulation, PeaksWhereItsPlanSays) {
  for (const double share : {100.0, 75.0}) {
    Config config = accumulating("peaks", 2);
    config.memory.budget = plan::Percent{share};
    Experiment experiment(config);
    TrainingStep step(experiment);
    Session session = plan_session(experiment, Kinds::Training);
    const data::Batch batch = experiment.train_batch(0);
    for (int i = 0; i < 2; ++i) {
      testing::test_memory().reset_peak();
      step.make_gradients(session, batch, i, i);
      step.update(i);
    }
    const auto predicted = static_cast<double>(session.predicted_peak());
    const auto measured = static_cast<double>(testing::test_memory().stats().allocated_peak);
    EXPECT_NEAR(measured / predicted, 1, 0.001) << share;
    EXPECT_LE(testing::test_memory().stats().mapped_peak, session.plan().budget);
  }
}

TEST(Accumulation, ThePredictedPeakIsOfAllMicroBatchesWhicheverRanLast) {
  Experiment experiment(accumulating("highest", 2));
  const std::vector<replay::PlannedStep> kinds = plan_experiment(experiment, Kinds::Training).kinds;
  const std::vector<plan::MemoryPlan> plans = replay::plan_all(kinds, std::nullopt);
  ASSERT_EQ(plans.size(), 2U);
  ASSERT_GT(plans[0].predicted_peak, plans[1].predicted_peak) << "a later one has gradients beside it";
  Session session(kinds, std::nullopt, testing::test_memory());
  data::Batch batch = experiment.train_batch(0);
  batch.target.slice(0, 8).fill_(data::kNoTarget);  // which leaves one micro-batch, the first
  (void)TrainingStep(experiment).backward(session, batch, 0);
  EXPECT_EQ(session.plan().predicted_peak, plans[1].predicted_peak);
  EXPECT_EQ(session.predicted_peak(), plans[0].predicted_peak);
  EXPECT_EQ(replay::highest_peak(plans), plans[0].predicted_peak);
}

TEST(Accumulation, TakesLessMemoryThanTheLargeBatch) {
  const auto peak = [](std::int64_t parts) {
    Experiment experiment(accumulating("less", parts));
    return plan::plan_none(TrainingStep(experiment).record(experiment.train_batch(0), std::nullopt).front().graph)
        .predicted_peak;
  };
  EXPECT_LT(peak(4), peak(1) * 2 / 3);
}

TEST(Accumulation, HasToDivideTheBatch) {
  EXPECT_THAT(fault([] { validate(accumulating("divides", 3)); }),
              HasSubstr("train.accumulate = 3 does not divide train.batch = 16"));
}

}  // namespace
}  // namespace snug::train
