// What steps compute in, what weights are kept in, and scaled losses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/report/progress.h"
#include "snug/train/planned_experiment.h"
#include "snug/train/precision.h"
#include "snug/train/training_step.h"
#include "snug/train/verify.h"
#include "tests/base/fault.h"
#include "tests/train/two_blocks.h"

namespace snug::train {
namespace {

using snug::testing::fault;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

VerifyResult verified(const Config& config) {
  report::Progress silent = report::Progress::silent();
  return verify(config, 3, 1, silent);
}

Config in_fp16(const std::string& name) {
  Config config = two_blocks("precision/" + name);
  config.precision.compute = Compute::Fp16;
  return config;
}

TEST(Precision, AutoIsWhatTheProcessorMultiplies) {
  EXPECT_EQ(computed_in(Compute::Auto, c10::kCPU), multiplies_bf16(c10::kCPU) ? Compute::Bf16 : Compute::Fp32);
  EXPECT_EQ(computed_in(Compute::Fp16, c10::kCPU), Compute::Fp16);
  Config config = two_blocks("precision/auto");
  config.precision.compute = Compute::Auto;
  Experiment automatic(config);
  const at::Tensor loss = automatic.loss(automatic.train_batch(0));
  config.precision.compute = computed_in(Compute::Auto, c10::kCPU);
  Experiment same(config);
  EXPECT_TRUE(at::equal(loss, same.loss(same.train_batch(0))));
}

TEST(Precision, WeightsInBf16HaveMastersOrNone) {
  for (const Updates updates : {Updates::Master, Updates::Stochastic}) {
    if (updates == Updates::Stochastic && !testing::test_device().is_cpu()) continue;  // which only the CPU has
    Config config = two_blocks("precision/weights");
    config.precision = {.compute = Compute::Bf16, .weights = TrainedWeights::Bf16, .updates = updates};
    config.memory.budget = plan::Percent{80};
    const VerifyResult result = verified(config);
    EXPECT_EQ(result.different, 0) << result.first_different;
    Experiment experiment(config);
    std::size_t masters = 0, kept = 0;
    for (const at::Tensor& p : experiment.optimizer().parameters()) {
      EXPECT_EQ(p.scalar_type(), at::kBFloat16);
      ++kept;
    }
    for (const auto& [name, tensor] : experiment.optimizer().named_state(std::vector<std::string>(kept, "p")))
      masters += name == "master.p" ? 1 : 0;
    EXPECT_EQ(masters, updates == Updates::Master ? kept : 0U);
  }
  Config config = two_blocks("precision/refused");
  config.precision.weights = TrainedWeights::Bf16;
  EXPECT_THAT(fault([&] { validate(config); }), HasSubstr("set precision.compute to \"bf16\""));
}

TEST(LossScale, AStepUnderAPlanIsThePlainOneInFp16) {
  for (const LossKind loss : {LossKind::Plain, LossKind::Tiled}) {
    Config config = in_fp16("verify");
    config.model.loss = loss;
    config.train.batch = 16;
    config.train.accumulate = 2;
    config.memory.budget = plan::Percent{80};
    const VerifyResult result = verified(config);
    EXPECT_EQ(result.different, 0) << result.first_different;
    EXPECT_GT(result.tensors, 0);
  }
}

TEST(LossScale, DoesNotShowInLossesAndNorms) {
  Config config = two_blocks("precision/norms");
  Experiment plain(config);
  config.precision.compute = Compute::Fp16;
  Experiment scaled(config);
  Session one = plan_session(plain, Kinds::Training), other = plan_session(scaled, Kinds::Training);
  const auto expected = TrainingStep(plain).make_gradients(one, plain.train_batch(0), 0, 0);
  const auto found = TrainingStep(scaled).make_gradients(other, scaled.train_batch(0), 0, 0);
  EXPECT_FALSE(found.overflowed);
  EXPECT_NEAR(found.loss, expected.loss, 0.01);
  EXPECT_NEAR(found.norm / expected.norm, 1, 0.02);
}

TEST(LossScale, AStepThatOverflowsIsSkippedAndTheScaleFalls) {
  Config config = in_fp16("overflow");
  Experiment experiment(config);
  TrainingStep step(experiment);
  Session session = plan_session(experiment, Kinds::Training);
  at::Tensor weight = experiment.optimizer().parameters().front();
  bool overflow = false;
  weight.register_hook([&](const at::Tensor& gradient) {
    return overflow ? gradient * std::numeric_limits<float>::infinity() : gradient;
  });
  const auto run = [&](int i) {
    const auto made = step.make_gradients(session, experiment.train_batch(i), i, i);
    step.update(i);
    return made;
  };
  EXPECT_FALSE(run(0).overflowed);
  EXPECT_EQ(experiment.scaler().get_scale(), 65536);
  const at::Tensor before = weight.detach().clone();
  overflow = true;
  EXPECT_TRUE(run(1).overflowed);
  EXPECT_TRUE(at::equal(weight.detach(), before));
  EXPECT_EQ(experiment.scaler().get_scale(), 32768);
  EXPECT_FALSE(weight.grad().defined());
  overflow = false;
  EXPECT_FALSE(run(2).overflowed);
  EXPECT_FALSE(at::equal(weight.detach(), before));
}

}  // namespace
}  // namespace snug::train
