// memory.host_budget and memory.disk_budget: plans of the command's steps that may move to the host's memory, or to a
// disk.
#include <gtest/gtest.h>

#include <string>

#include "snug/report/progress.h"
#include "snug/train/experiment.h"
#include "snug/train/training_step.h"
#include "snug/train/verify.h"
#include "tests/train/two_blocks.h"

namespace snug::train {
namespace {

class TierBudget : public ::testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] Config with(const std::string& budget) const {
    Config config = two_blocks(std::string("tier_") + GetParam());
    set(config, budget);
    return config;
  }
  static void set(Config& config, const std::string& budget) {
    set_key(config, std::string("memory.") + GetParam() + "=" + budget);
  }
};

TEST_P(TierBudget, ChangesNoBit) {
  Config config = with("64MiB");
  set_key(config, "memory.budget=90%");
  config.train.accumulate = 2;
  report::Progress silent = report::Progress::silent();
  const VerifyResult result = verify(config, 3, 1, silent);
  EXPECT_EQ(result.different, 0);
  EXPECT_EQ(result.steps, 3);
  EXPECT_LE(result.memory.mapped_peak, result.plan.budget);
}

TEST_P(TierBudget, IsOfBytes) {
  Config config = with("");
  for (const char* wrong : {"50%", "0", "much"})
    EXPECT_THROW((set(config, wrong), validate(config)), UsageError) << wrong;
}

INSTANTIATE_TEST_SUITE_P(Homes, TierBudget, ::testing::Values("host_budget", "disk_budget"),
                         [](const auto& of) { return std::string(of.param); });

TEST(TierBudgetsOfBoth, AreInTheGraphsThatPlansAreMadeFrom) {
  Config config = two_blocks("tier_graph");
  set_key(config, "memory.host_budget=8MiB");
  set_key(config, "memory.disk_budget=64MiB");
  Experiment experiment(config);
  TrainingStep step(experiment);
  for (const replay::RecordedStep& kind : step.record(experiment.train_batch(0), std::nullopt)) {
    ASSERT_TRUE(kind.graph.moves.host && kind.graph.moves.disk);
    EXPECT_EQ(kind.graph.moves.host->budget, 8_MiB);
    EXPECT_EQ(kind.graph.moves.disk->budget, 64_MiB);
  }
  EXPECT_EQ(experiment.tiers()->budgets(), (memory::TierBudgets{.host = 8_MiB, .disk = 64_MiB}));
}

}  // namespace
}  // namespace snug::train
