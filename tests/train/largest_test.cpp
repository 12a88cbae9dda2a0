// The largest step that fits, and that one more does not.
#include "snug/train/largest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "snug/memory/out_of_budget.h"
#include "snug/plan/does_not_fit.h"
#include "snug/replay/planned_step.h"
#include "snug/train/experiment.h"
#include "snug/train/training_step.h"
#include "tests/base/fault.h"
#include "tests/train/two_blocks.h"

namespace snug::train {
namespace {

using ::testing::HasSubstr;

Bytes floor_with(Config config, Extent extent, std::int64_t size) {
  if (extent == Extent::Batch) config.train.batch = size;
  if (extent == Extent::Blocks) config.model.blocks = size;
  if (extent == Extent::Sequence) config.model.sequence = size;
  Experiment experiment(config);
  TrainingStep step(experiment);
  return replay::smallest_budget(replay::planned(step.record(experiment.train_batch(0), std::nullopt), "optimal"));
}

Largest found(const Config& config, Extent extent, Bytes budget) {
  report::Progress progress = report::Progress::silent();
  return largest(config, extent, budget, progress);
}

/// Between what one more takes and what it takes.
void expect_exact(const Config& config, Extent extent, std::int64_t size, std::int64_t step = 1) {
  const Bytes fits = floor_with(config, extent, size), more = floor_with(config, extent, size + step);
  ASSERT_LT(fits, more);
  const Largest l = found(config, extent, (fits + more) / 2);
  EXPECT_EQ(l.size, size);
  EXPECT_LE(l.measured_peak, (fits + more) / 2);
  EXPECT_LE(l.predicted_peak, (fits + more) / 2);
  EXPECT_GT(l.step_seconds, 0);
  EXPECT_NEAR(static_cast<double>(l.fixed) + l.bytes_each * static_cast<double>(size), static_cast<double>(fits),
              0.05 * static_cast<double>(fits));
}

TEST(Largest, BatchIsExact) { expect_exact(two_blocks("largest/batch"), Extent::Batch, 11); }

TEST(Largest, BatchOfSmallOnesIsExact) { expect_exact(two_blocks("largest/small"), Extent::Batch, 1); }

TEST(Largest, BatchIsOfWholeSequencesInEachMicroBatch) {
  Config config = two_blocks("largest/accumulate");
  config.train.batch = 6;
  config.train.accumulate = 3;
  expect_exact(config, Extent::Batch, 9, 3);
}

TEST(Largest, BlocksAreExactAndTheirStateIsCounted) {
  Config config = two_blocks("largest/blocks");
  expect_exact(config, Extent::Blocks, 7);
  const Bytes budget = floor_with(config, Extent::Blocks, 6);
  config.optimizer.kind = "sgd";
  EXPECT_GT(found(config, Extent::Blocks, budget).size, 6);
}

TEST(Largest, BlocksWhoseWeightsAreUpdatedInBackward) {
  Config config = two_blocks("largest/in_backward");
  config.optimizer.clip_norm = 0;
  config.optimizer.in_backward = true;
  expect_exact(config, Extent::Blocks, 5);
}

TEST(Largest, SequenceEndsWhereTheModelDoes) {
  const Config config = two_blocks("largest/sequence");
  const Largest l = found(config, Extent::Sequence, 1_GiB);
  EXPECT_EQ(l.size, config.model.sequence);
  EXPECT_EQ(l.limit, config.model.sequence);
  EXPECT_GT(l.by_memory, 100 * config.model.sequence);
}

TEST(Largest, NothingFits) { EXPECT_THROW(found(two_blocks("largest/nothing"), Extent::Batch, 100_KiB), Error); }

TEST(Largest, BlocksOfAPretrainedModelAreRefused) {
  Config config = two_blocks("largest/pretrained");
  config.model.path = "folder";
  EXPECT_THAT(snug::testing::fault([&] { (void)found(config, Extent::Blocks, 1_GiB); }),
              HasSubstr("model.path is folder"));
}

}  // namespace
}  // namespace snug::train
