// memory.disk_budget: plans of the command's steps that may move to a disk.
#include <gtest/gtest.h>

#include "snug/report/progress.h"
#include "snug/train/experiment.h"
#include "snug/train/training_step.h"
#include "snug/train/verify.h"
#include "tests/train/two_blocks.h"

namespace snug::train {
namespace {

TEST(DiskBudget, ChangesNoBit) {
  Config config = two_blocks("disk_verify");
  set_key(config, "memory.disk_budget=64MiB");
  set_key(config, "memory.budget=90%");
  config.train.accumulate = 2;
  report::Progress silent = report::Progress::silent();
  const VerifyResult result = verify(config, 3, 1, silent);
  EXPECT_EQ(result.different, 0);
  EXPECT_EQ(result.steps, 3);
  EXPECT_LE(result.memory.mapped_peak, result.plan.budget);
}

TEST(DiskBudget, IsOfBytes) {
  Config config = two_blocks("disk_wrong");
  EXPECT_NO_THROW(set_key(config, "memory.disk_budget="));
  for (const char* wrong : {"memory.disk_budget=50%", "memory.disk_budget=0", "memory.disk_budget=much"})
    EXPECT_THROW((set_key(config, wrong), validate(config)), UsageError) << wrong;
}

TEST(DiskBudget, IsInTheGraphsThatPlansAreMadeFromBesideTheHosts) {
  Config config = two_blocks("disk_graph");
  set_key(config, "memory.disk_budget=64MiB");
  set_key(config, "memory.host_budget=8MiB");
  Experiment experiment(config);
  TrainingStep step(experiment);
  for (const replay::RecordedStep& kind : step.record(experiment.train_batch(0), std::nullopt)) {
    ASSERT_TRUE(kind.graph.moves.host && kind.graph.moves.disk);
    EXPECT_EQ(kind.graph.moves.host->budget, 8_MiB);
    EXPECT_EQ(kind.graph.moves.disk->budget, 64_MiB);
  }
  EXPECT_EQ(experiment.tiers()->budgets().disk, 64_MiB);
}

}  // namespace
}  // namespace snug::train
