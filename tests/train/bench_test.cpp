// What is measured is what training would do: with the update in it.
#include "snug/train/bench.h"

#include <gtest/gtest.h>

#include "snug/memory/device_memory.h"
#include "snug/plan/planner.h"
#include "snug/replay/planned_step.h"
#include "snug/train/planned_experiment.h"
#include "snug/train/training_step.h"
#include "tests/base/scratch.h"
#include "tests/device/test_device.h"
#include "tests/train/reference_files.h"

namespace snug::train {
namespace {

BenchRow row_for(const Config& config, Bytes budget) {
  report::Progress silent = report::Progress::silent();
  return bench(config, {.budgets = {budget}, .rounds = 1, .steps = 1}, silent).rows.front();
}

TEST(Bench, RefusesTheBudgetsThatTrainingDoes) {
  Config config;
  config.model.kind = "llama";
  config.model.path = kHere / "tiny";
  config.model.weights = BaseWeights::Bf16;  // whose update makes gradients in fp32
  config.model.loss = LossKind::Plain;
  config.model.sequence = 4;
  config.data.path = kHere / "tiny" / "tokenizer.json";
  config.train.device = snug::testing::test_device().str();
  config.train.batch = 1;
  config.train.validation_batches = 0;
  Bytes floor = 0;
  {
    Experiment experiment(config);
    floor = replay::smallest_budget(plan_experiment(experiment, Kinds::Training).kinds);
    const data::Batch batch = experiment.train_batch(0);
    const replay::RecordedStep without =
        replay::record_step([&] { return experiment.loss(batch); }, testing::test_memory());
    ASSERT_LT(plan::Budget::for_limit(1).floor_for(plan::Planner(without.graph, "optimal").floor(without.graph)), floor)
        << "its update is what takes most";
  }
  const BenchRow fits = row_for(config, floor), less = row_for(config, floor - 1);
  EXPECT_TRUE(fits.fits);
  EXPECT_EQ(fits.turns, 1);
  EXPECT_LE(fits.mapped_peak, floor);
  EXPECT_NEAR(static_cast<double>(fits.measured_peak) / static_cast<double>(fits.predicted_peak), 1, 0.01);
  EXPECT_FALSE(less.fits);
  EXPECT_EQ(less.predicted_peak, floor);
}

}  // namespace
}  // namespace snug::train
