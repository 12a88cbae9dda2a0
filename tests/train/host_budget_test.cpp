// memory.host_budget: plans of the command's steps that may move to the host's memory.
#include <gtest/gtest.h>

#include "snug/report/progress.h"
#include "snug/train/experiment.h"
#include "snug/train/training_step.h"
#include "snug/train/verify.h"
#include "tests/train/two_blocks.h"

namespace snug::train {
namespace {

Config with_host(const std::string& name) {
  Config config = two_blocks(name);
  set_key(config, "memory.host_budget=64MiB");
  return config;
}

TEST(HostBudget, ChangesNoBit) {
  Config config = with_host("host_verify");
  set_key(config, "memory.budget=90%");
  config.train.accumulate = 2;
  report::Progress silent = report::Progress::silent();
  const VerifyResult result = verify(config, 3, 1, silent);
  EXPECT_EQ(result.different, 0);
  EXPECT_EQ(result.steps, 3);
  EXPECT_LE(result.memory.mapped_peak, result.plan.budget);
}

TEST(HostBudget, IsOfBytes) {
  Config config = two_blocks("host_wrong");
  EXPECT_NO_THROW(set_key(config, "memory.host_budget="));
  for (const char* wrong : {"memory.host_budget=50%", "memory.host_budget=0", "memory.host_budget=much"})
    EXPECT_THROW((set_key(config, wrong), validate(config)), UsageError) << wrong;
}

TEST(HostBudget, IsInTheGraphsThatPlansAreMadeFrom) {
  Experiment experiment(with_host("host_graph"));
  TrainingStep step(experiment);
  for (const replay::RecordedStep& kind : step.record(experiment.train_batch(0), std::nullopt)) {
    ASSERT_TRUE(kind.graph.moves.host);
    EXPECT_EQ(kind.graph.moves.host->budget, 64_MiB);
  }
  EXPECT_EQ(experiment.tiers()->budgets().host, 64_MiB);
}

}  // namespace
}  // namespace snug::train
