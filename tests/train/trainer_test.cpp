// The loop: what is saved, when, and what is refused before anything runs.
#include "snug/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "snug/base/text_file.h"
#include "snug/memory/device_memory.h"
#include "snug/plan/plan_file.h"
#include "snug/report/progress.h"
#include "snug/state/manifest.h"
#include "snug/state/training_state.h"
#include "snug/train/experiment.h"
#include "snug/train/interrupt.h"
#include "snug/train/planned_experiment.h"
#include "tests/base/fault.h"
#include "tests/device/test_device.h"

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
  c.train.device = snug::testing::test_device().str();
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
  ASSERT_TRUE(result.validation_loss) << "it validates all the same";
  EXPECT_EQ(state::open_state(state_of(config, 3)).manifest.metric, result.validation_loss);
}

/// Calls `action` at the first operator of each batch that is evaluated.
class AtEvaluation {
 public:
  explicit AtEvaluation(std::function<void()> action) {
    called = std::move(action);
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
          if (!at::GradMode::is_enabled() && std::string_view(f.name()) == "aten::embedding") called();
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  AtEvaluation(const AtEvaluation&) = delete;
  AtEvaluation& operator=(const AtEvaluation&) = delete;
  ~AtEvaluation() { at::removeCallback(handle_); }

 private:
  inline static std::function<void()> called;
  at::CallbackHandle handle_;
};

TEST(Trainer, ARunThatEndsInItsLastValidationHasItsLastState) {
  Config config = five_steps("last_validation");
  config.state.every = 0;
  config.state.write = StateWrite::Wait;
  int evaluations = 0;
  TrainOptions options;
  options.start = Start::Resume;
  {
    const AtEvaluation count([&] { evaluations += fs::exists(state_of(config, 5)) ? 1 : 0; });
    run(config);
  }
  EXPECT_GT(evaluations, 0) << "with the state on the disk";

  // As if the process had been killed then.
  state::Manifest manifest = state::open_state(state_of(config, 5)).manifest;
  const std::optional<double> loss = std::exchange(manifest.metric, std::nullopt);
  write_text(state_of(config, 5) / "manifest.json", state::format_manifest(manifest));
  EXPECT_EQ(run(config, options).validation_loss, loss);
  EXPECT_EQ(state::open_state(state_of(config, 5)).manifest.metric, loss);
  EXPECT_EQ(run(config, options).validation_loss, std::nullopt) << "which the run before has told";
}

TEST(Trainer, SavesItsStateWhenASignalAsksForIt) {
  Config config = five_steps("asked");
  config.state.every = 0;
  config.state.interval = 0;
  const InterruptScope interruptible;
  const TrainResult result = run(config, in_step_after(2, [](Experiment&) { std::raise(SIGUSR1); }));
  EXPECT_FALSE(result.interrupted);
  EXPECT_EQ(result.steps, 5);
  EXPECT_EQ(result.states_saved, 2) << "when asked, and at the end";
  EXPECT_TRUE(fs::exists(state_of(config, 3)));
  EXPECT_TRUE(fs::exists(state_of(config, 5)));
}

TEST(Trainer, SavesItsStateByTime) {
  Config config = five_steps("by_time");
  config.state.every = 0;
  config.state.interval = 1e-9;
  EXPECT_GE(run(config).states_saved, 2) << "as often as saving takes little time beside the steps";
  EXPECT_TRUE(fs::exists(state_of(config, 1)));
  config.output.folder += "_never";
  config.state.interval = 3600;
  EXPECT_EQ(run(config).states_saved, 1) << "at the end";
}

TEST(Trainer, AStateHasTheValidationLossOfItsStep) {
  Config config = five_steps("validated");
  const TrainResult result = run(config);
  EXPECT_EQ(state::open_state(state_of(config, 5)).manifest.metric, result.validation_loss);
  EXPECT_EQ(state::open_state(state_of(config, 4)).manifest.metric, std::nullopt);
}

TEST(Trainer, MetricsSayHowFarARunIsAndItsLearningRate) {
  Config config = five_steps("metrics");
  config.optimizer.warmup_steps = 2;
  run(config);
  const Experiment experiment(config);
  std::istringstream text(read_text(fs::path(config.output.folder) / "metrics.jsonl"));
  std::int64_t step = 0;
  for (std::string line; std::getline(text, line);) {
    const auto json = nlohmann::json::parse(line);
    if (!json.contains("step")) continue;
    ++step;
    EXPECT_EQ(json["tokens"], step * 2 * 16);
    EXPECT_EQ(json["learning_rate"], experiment.learning_rate(step - 1));
    // Windows of 16 targets in the text's first 95 %.
    const std::int64_t tokens = fs::file_size(config.data.path) * 95 / 100;
    EXPECT_NEAR(json["epoch"].get<double>(), static_cast<double>(step * 2 * 16) / static_cast<double>(tokens), 1e-3);
  }
  EXPECT_EQ(step, 5);
}

TEST(Trainer, SaysThatAWarmUpIsLongerThanTheRun) {
  Config config = five_steps("warm_up");
  const auto told = [&](std::int64_t warmup_steps) {
    config.optimizer.warmup_steps = warmup_steps;
    const fs::path file = fs::path(config.data.path).parent_path() / "told";
    std::FILE* const out = std::fopen(file.c_str(), "w");
    {
      report::Progress progress = report::Progress::plain(out);
      train(config, progress);
    }
    (void)std::fclose(out);
    return read_text(file);
  };
  EXPECT_THAT(told(6), HasSubstr("optimizer.warmup_steps = 6 and train.steps = 5"));
  EXPECT_THAT(told(5), ::testing::Not(HasSubstr("warmup_steps")));
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

TEST(Trainer, AFailingValidationLeavesWhatWasTrained) {
  Config config = five_steps("validation_fails");
  const fs::path ids = fs::path(config.data.path).parent_path() / "ids.bin";
  std::vector<std::uint16_t> tokens(4000);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint16_t>(i * i % 251);
  const auto put = [&ids](std::size_t from, const std::vector<std::uint16_t>& those, std::ios::openmode mode) {
    std::ofstream out(ids, std::ios::binary | mode);
    out.seekp(static_cast<std::streamoff>(from * sizeof(std::uint16_t)));
    out.write(reinterpret_cast<const char*>(those.data()), static_cast<std::streamsize>(those.size() * 2));
  };
  put(0, tokens, std::ios::trunc);
  config.data.path = ids;
  config.state.every = 0;
  config.train.validate_every = 4;
  // Ids that the model has not, in the part that it is validated on.
  const auto spoils =
      in_step_after(3, [&](Experiment&) { put(3900, std::vector<std::uint16_t>(100, 9999), std::ios::in); });
  EXPECT_ANY_THROW(run(config, spoils));
  EXPECT_EQ(state::open_state(state_of(config, 4)).manifest.metric, std::nullopt);
}

TEST(Trainer, TextThatIsCutOffMeanwhileEndsTheRunWithAState) {
  Config config = five_steps("cut_off");
  config.state.every = 0;
  config.train.steps = 500;
  const auto cut = in_step_after(3, [&](Experiment&) { fs::resize_file(config.data.path, 0); });
  EXPECT_THAT([&] { run(config, cut); }, ThrowsMessage<Error>(HasSubstr("it has become shorter")));
  EXPECT_FALSE(fs::is_empty(fs::path(config.output.folder) / "state"));
}

TEST(Trainer, OfAnUpdateThatFailedNoStateIsSaved) {
  Config config = five_steps("update_fails");
  config.state.every = 2;
  const auto spoils =
      in_step_after(3, [](Experiment& experiment) { experiment.optimizer().state().back().resize_({0}); });
  EXPECT_ANY_THROW(run(config, spoils));
  EXPECT_TRUE(fs::exists(state_of(config, 2)));
  EXPECT_FALSE(fs::exists(state_of(config, 3))) << "its weights are in part those of step 4";
  EXPECT_FALSE(fs::exists(state_of(config, 4)));
}

TEST(Trainer, AFailureBehindTheLastStepLosesNothing) {
  Config config = five_steps("after_fails");
  config.state.every = 0;
  TrainOptions options;
  options.after = [&](Experiment&, const TrainResult&) {
    EXPECT_TRUE(fs::exists(state_of(config, 5))) << "before anything else is tried";
    throw Error("the disk is full");
  };
  EXPECT_THAT([&] { run(config, options); }, ThrowsMessage<Error>(HasSubstr("the disk is full")));
  EXPECT_THAT(read_text(fs::path(config.output.folder) / "metrics.jsonl"), HasSubstr("\"result\""));
  options.start = Start::Resume;
  bool again = false;
  options.after = [&](Experiment&, const TrainResult& result) { again = result.steps == 5; };
  EXPECT_EQ(run(config, options).resumed_from, 5);
  EXPECT_TRUE(again);
}

TEST(Trainer, AStateThatCannotBeSavedIsNoReasonToLeaveOutTheResult) {
  Config config = five_steps("no_state");
  fs::create_directories(config.output.folder);
  write_text(fs::path(config.output.folder) / "state", "a file where the folder should be");
  EXPECT_THROW(run(config), Error);
  const std::string metrics = read_text(fs::path(config.output.folder) / "metrics.jsonl");
  EXPECT_THAT(metrics, AllOf(HasSubstr("\"result\""), HasSubstr("\"states_saved\":0")));
}

TEST(Trainer, AFinishedRunGoesOnWhereMoreStepsAreAskedFor) {
  Config config = five_steps("more");
  config.state.every = 0;
  std::vector<std::int64_t> made;
  TrainOptions options;
  options.after = [&](Experiment&, const TrainResult& result) { made.push_back(result.steps); };
  run(config, options);
  config.train.steps = 7;
  options.start = Start::Resume;
  EXPECT_EQ(run(config, options).resumed_from, 5);
  EXPECT_EQ(made, (std::vector<std::int64_t>{5, 7}));
  std::ifstream metrics(fs::path(config.output.folder) / "metrics.jsonl");
  int steps = 0;
  for (std::string line; std::getline(metrics, line);) steps += line.starts_with("{\"step\"");
  EXPECT_EQ(steps, 7);
}

TEST(Trainer, BeforeIsUnderABudgetInBytesAndIsNotInTheResult) {
  const auto limit = [] { return testing::test_memory().stats().limit; };
  constexpr Bytes kTaken = 24_MiB;
  for (const std::string budget : {"32MiB", "100%", ""}) {
    Config config = five_steps("before");
    config.memory.budget = plan::parse_budget(budget);
    config.output.folder.clear();
    config.state = {};
    TrainOptions options;
    std::optional<Bytes> held;
    options.before = [&](Experiment&) {
      held = limit();
      (void)at::empty({kTaken}, at::kByte);
    };
    const TrainResult result = run(config, options);
    EXPECT_EQ(held, budget == "32MiB" ? std::optional<Bytes>(32_MiB) : std::nullopt) << budget;
    EXPECT_LT(result.memory.allocated_peak, kTaken) << budget;
    EXPECT_LT(result.memory.mapped_peak, kTaken) << budget;
    EXPECT_EQ(limit(), std::nullopt);
  }
}

TEST(Trainer, BatchesThatAreMadeAheadArePartOfThePlan) {
  Config config = five_steps("ahead");
  config.output.folder.clear();
  config.state = {};
  config.train.batch = 64;
  config.data.workers = 2;
  config.data.prefetch = 96;
  const Bytes waiting = 96 * 2 * testing::test_memory().rounded(64 * 16 * 8);  // of int64
  {
    config.memory.budget = plan::Percent{100};
    Experiment experiment(config);
    const auto training = plan_experiment(experiment, Kinds::Training), whole = plan_experiment(experiment, Kinds::Run);
    EXPECT_EQ(training.kinds.front().step.passing.front().beside, 0);
    for (const replay::PlannedStep& kind : whole.kinds) EXPECT_EQ(kind.step.passing.front().beside, waiting);
    const auto fixed = [](const PlannedExperiment& planned) { return planned.kinds.front().step.graph.static_bytes; };
    EXPECT_EQ(fixed(whole), fixed(training) + waiting);
    config.memory.budget = replay::smallest_budget(whole.kinds) + 64_KiB;
  }
  const TrainResult result = run(config);
  EXPECT_EQ(result.steps, 5);
  EXPECT_EQ(result.evictions, 0);
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
  Config config = five_steps("no_disk");
  config.memory.budget = plan::Percent{98};
  const char* const before = std::getenv("TMPDIR");
  ::setenv("TMPDIR", "/dev/null/nowhere", 1);
  EXPECT_NO_THROW(EXPECT_EQ(run(config).steps, 5));  // else the other tests would have no disk either
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
