// Strategies that name modules, on the command's steps: the plain bits, and what they say is done.
#include <gtest/gtest.h>

#include "snug/report/progress.h"
#include "snug/train/experiment.h"
#include "snug/train/planned_experiment.h"
#include "snug/train/training_step.h"
#include "snug/train/verify.h"
#include "tests/base/fault.h"
#include "tests/train/two_blocks.h"

namespace snug::train {
namespace {

Config with_strategy(const std::string& strategy) {
  Config config = two_blocks("modules");
  config.memory.strategy = strategy;
  return config;
}

TEST(ModuleStrategies, GiveThePlainBits) {
  report::Progress silent = report::Progress::silent();
  for (const char* strategy : {"recompute_modules(mlp)", "recompute_modules(attention, blocks.1)",
                               "recompute_outputs(attention)", "recompute_outputs(mlp, attention)"}) {
    const VerifyResult result = verify(with_strategy(strategy), 2, 1, silent);
    EXPECT_EQ(result.different, 0) << strategy << ": " << result.first_different;
    EXPECT_GT(result.replayed_ops, 0) << strategy;
    EXPECT_LE(result.memory.allocated_peak, result.predicted_peak) << strategy;
    EXPECT_GE(result.memory.allocated_peak, result.predicted_peak - 1_KiB) << strategy;
  }
}

TEST(ModuleStrategies, MoveWhatModulesSave) {
  Config config = with_strategy("offload_modules(mlp)");
  set_key(config, "memory.budget=1GiB");
  set_key(config, "memory.host_budget=64MiB");
  report::Progress silent = report::Progress::silent();
  EXPECT_EQ(verify(config, 2, 1, silent).different, 0);
  Experiment experiment(config);
  TrainingStep step(experiment);
  Session session = plan_session(experiment, Kinds::Training);
  step.backward(session, experiment.train_batch(0), 0);
  EXPECT_GT(session.last_step().moved_bytes, 0);
  EXPECT_EQ(session.last_step().replayed_ops, 0);
}

TEST(ModuleStrategies, SayWhichModulesThereAre) {
  report::Progress silent = report::Progress::silent();
  EXPECT_EQ(
      testing::fault([&] { (void)verify(with_strategy("recompute_modules(mpl)"), 1, 1, silent); }),
      "plan: no operator ran in a module \"mpl\"; did you mean \"mlp\"? there are attention, blocks, lm_head, loss, "
      "mlp");
}

}  // namespace
}  // namespace snug::train
