// A resumed run is bitwise the whole one with every optimizer, schedule, precision and accumulation.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "snug/optim/optimizer.h"
#include "tests/train/resumed_run.h"

namespace snug::train {
namespace {

std::vector<std::string> optimizers() {
  std::vector<std::string> names;
  for (const optim::OptimizerKind* kind : optim::optimizer_kinds()) names.emplace_back(kind->name);
  return names;
}

class ResumedWith : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, ResumedWith, ::testing::ValuesIn(optimizers()),
                         [](const auto& name) { return name.param; });

TEST_P(ResumedWith, GoesOnBitForBit) {
  if (GetParam() == "adamw_8bit") SNUG_ONLY_ON_THE_CPU("moments in 8 bits");
  Config config = forty_steps();
  config.optimizer.kind = GetParam();
  config.model.width = 64;  // so that matrices are large enough for 8 bits
  const auto folder = snug::testing::scratch("resume/optimizer-" + GetParam());
  run_in(config, folder);
  expect_same(outcome(folder), resumed(folder, "optimizer-" + GetParam() + "-again", config));
}

TEST(Resumed, SchedulesGoOn) {
  for (const LearningRate schedule : {LearningRate::Constant, LearningRate::Linear, LearningRate::Wsd}) {
    Config config = forty_steps();
    config.optimizer.schedule = schedule;
    config.optimizer.groups = "*.bias: learning_rate=2; *norm*: weight_decay=0.1";
    config.optimizer.clip_value = schedule == LearningRate::Linear ? 0.01 : 0;
    const std::string name = "schedule-" + std::string(word(schedule));
    const auto folder = snug::testing::scratch("resume/" + name);
    run_in(config, folder);
    expect_same(outcome(folder), resumed(folder, name + "-again", config));
  }
}

TEST(Resumed, ALossScaleThatRisesAndFallsGoesOn) {
  Config config = forty_steps();
  config.precision.compute = Compute::Fp16;
  config.precision.init_scale = 1e9;  // from which it falls
  config.precision.growth_interval = 5;
  config.precision.growth_factor = 64;
  config.train.accumulate = 2;
  const auto folder = snug::testing::scratch("resume/scale");
  const TrainResult result = run_in(config, folder);
  EXPECT_GT(result.scaled.skipped_steps, 2);
  EXPECT_LT(result.scaled.skipped_steps, 30);
  ASSERT_TRUE(result.scaled.loss_scale);
  EXPECT_NE(*result.scaled.loss_scale, 1e9);
  expect_same(outcome(folder), resumed(folder, "scale-again", config));
}

TEST(Resumed, WeightsInBf16GoOn) {
  for (const Updates updates : {Updates::Master, Updates::Stochastic}) {
    if (updates == Updates::Stochastic && !testing::test_device().is_cpu()) continue;  // which only the CPU has
    Config config = forty_steps();
    config.precision = {.compute = Compute::Bf16, .weights = TrainedWeights::Bf16, .updates = updates};
    const std::string name = "bf16-" + std::string(word(updates));
    const auto folder = snug::testing::scratch("resume/" + name);
    run_in(config, folder);
    expect_same(outcome(folder), resumed(folder, name + "-again", config));
  }
}

}  // namespace
}  // namespace snug::train
