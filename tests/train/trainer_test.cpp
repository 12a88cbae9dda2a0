// The loop: what is saved, when, and what is refused before anything runs.
#include "snug/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "snug/base/text_file.h"
#include "snug/plan/plan_file.h"
#include "snug/report/progress.h"
#include "snug/state/training_state.h"
#include "snug/train/experiment.h"
#include "snug/train/interrupt.h"
#include "tests/base/fault.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;
using snug::testing::fault;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// A small model with dropout, and a folder of its own.
Config five_steps(const std::string& name) {
  const fs::path folder = fs::path(::testing::TempDir()) / "snug_trainer" / name;
  fs::remove_all(folder);
  fs::create_directories(folder);
  std::string text;
  for (int i = 0; i < 1000; ++i) text += std::to_string(i * i) + " and ";
  write_text(folder / "text", text);
  Config c;
  c.model.blocks = 2;
  c.model.width = 32;
  c.model.heads = 2;
  c.model.sequence = 16;
  c.model.own.set("dropout", 0.1);
  c.data.path = folder / "text";
  c.train.batch = 2;
  c.train.steps = 5;
  c.state.every = 1;
  c.state.last = 10;
  c.output.folder = folder / "out";
  return c;
}

TrainResult run(const Config& config, const TrainOptions& options = {}) {
  report::Progress silent = report::Progress::silent();
  return train(config, silent, options);
}

/// Calls `action` in the backward pass of the step after `steps` have been done, and not while steps are recorded.
TrainOptions in_step_after(float steps, const std::function<void(Experiment&)>& action) {
  TrainOptions options;
  options.before = [=](Experiment& experiment) {
    const at::Tensor done = experiment.optimizer().state().back();
    experiment.optimizer().parameters().front().register_hook([=, &experiment](const at::Tensor&) {
      if (done.item<float>() == steps) action(experiment);
    });
  };
  return options;
}

fs::path state_of(const Config& config, std::int64_t step) {
  return fs::path(config.output.folder) / "state" / state::state_name(step);
}

TEST(Trainer, AStoppedRunSavesItsStateBeforeItValidates) {
  Config config = five_steps("stopped");
  config.state.every = 0;
  const InterruptScope interruptible;
  const TrainResult result = run(config, in_step_after(2, [](Experiment&) { std::raise(SIGTERM); }));
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.steps, 3);
  EXPECT_EQ(result.states_saved, 1);
  EXPECT_TRUE(result.validation_loss) << "it validates all the same";
  EXPECT_EQ(state::open_state(state_of(config, 3)).manifest.metric, std::nullopt) << "which was not known yet";
}

TEST(Trainer, AStateHasTheValidationLossOfItsStep) {
  Config config = five_steps("validated");
  const TrainResult result = run(config);
  EXPECT_EQ(state::open_state(state_of(config, 5)).manifest.metric, result.validation_loss);
  EXPECT_EQ(state::open_state(state_of(config, 4)).manifest.metric, std::nullopt);
}

TEST(Trainer, AStateHasThePlanThatIsFollowedThen) {
  const Config config = five_steps("plans");
  // Without dropout it is another step, which the session plans anew.
  const TrainResult result = run(config, in_step_after(1, [](Experiment& experiment) { experiment.model().eval(); }));
  const plan::PlanFile first = plan::read_plan(state_of(config, 1) / "plan.json");
  const plan::PlanFile last = plan::read_plan(state_of(config, 5) / "plan.json");
  EXPECT_NE(first.plan, result.plan);
  EXPECT_EQ(last.plan, result.plan);
}

TEST(Trainer, AFailingStepLeavesWhatWasTrained) {
  Config config = five_steps("fails");
  config.state.every = 0;
  const auto fails = in_step_after(3, [](Experiment&) { throw Error("the fourth step fails"); });
  EXPECT_THAT([&] { run(config, fails); }, ThrowsMessage<Error>(HasSubstr("the fourth step fails")));
  EXPECT_TRUE(fs::exists(state_of(config, 3)));
  TrainOptions resume;
  resume.start = Start::Resume;
  const TrainResult resumed = run(config, resume);
  EXPECT_EQ(resumed.resumed_from, 3);
  const TrainResult whole = run(five_steps("does_not_fail"));
  EXPECT_EQ(resumed.loss_last, whole.loss_last);
  EXPECT_EQ(resumed.validation_loss, whole.validation_loss);
}

TEST(Trainer, MetricsThatCannotBeWrittenDoNotEndARun) {
  const Config config = five_steps("no_metrics");
  fs::create_directories(config.output.folder);
  fs::create_symlink("/dev/full", fs::path(config.output.folder) / "metrics.jsonl");
  EXPECT_THAT([&] { run(config); },
              ThrowsMessage<Error>(AllOf(HasSubstr("metrics.jsonl"), HasSubstr("No space left"))));
  EXPECT_TRUE(fs::exists(state_of(config, 5)));
}

TEST(Trainer, RehearsesItsUpdateWithoutADisk) {
  const char* const before = std::getenv("TMPDIR");
  ::setenv("TMPDIR", "/nowhere", 1);
  const Config config = five_steps("no_disk");
  EXPECT_EQ(run(config).steps, 5);
  before == nullptr ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", before, 1);
}

TEST(Trainer, FewerStepsThanAreDoneAreRefused) {
  Config config = five_steps("fewer");
  run(config);
  const std::string metrics = read_text(fs::path(config.output.folder) / "metrics.jsonl");
  config.train.steps = 3;
  TrainOptions resume;
  resume.start = Start::Resume;
  EXPECT_THAT(fault([&] { run(config, resume); }), AllOf(HasSubstr("is of 5 steps"), HasSubstr("train.steps = 3")));
  EXPECT_EQ(read_text(fs::path(config.output.folder) / "metrics.jsonl"), metrics);
  config.train.steps = 6;
  EXPECT_EQ(run(config, resume).steps, 6);
}

}  // namespace
}  // namespace snug::train
