// A run that was stopped and resumed is bitwise the run that was not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "snug/base/errors.h"
#include "snug/base/text_file.h"
#include "snug/report/progress.h"
#include "snug/state/manifest.h"
#include "snug/state/training_state.h"
#include "snug/train/experiment.h"
#include "snug/train/interrupt.h"
#include "snug/train/trainer.h"
#include "tests/base/fault.h"
#include "tests/base/scratch.h"
#include "tests/train/resumed_run.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;
using snug::testing::scratch;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Adapters with dropout beside frozen weights, packed or not.
Config lora(BaseWeights weights) {
  Config c = forty_steps();
  c.model = {};
  c.model.kind = "llama";
  c.model.path = fs::path(SNUG_TESTS) / "train" / "tiny.gguf";
  c.model.weights = weights;
  c.model.sequence = 32;
  c.lora.rank = 4;
  c.lora.dropout = 0.2;
  c.lora.targets = "all-linear";
  return c;
}

TEST(Resume, TwentyStepsAndTwentyMoreAreForty) {
  const fs::path folder = scratch("resume/gpt");
  EXPECT_EQ(run_in(forty_steps(), folder).states_saved, 2);
  const Outcome whole = outcome(folder);
  expect_same(whole, resumed(folder, "gpt-again", forty_steps()));
  Config other = forty_steps();
  other.memory.budget = plan::Percent{90};
  expect_same(whole, resumed(folder, "gpt-budget", other));
  other.memory.strategy = "eviction";
  other.state.write = StateWrite::Wait;
  expect_same(whole, resumed(folder, "gpt-eviction", other));
  Config loaded = forty_steps();
  loaded.data.workers = 3;
  loaded.data.prefetch = 5;
  expect_same(whole, resumed(folder, "gpt-workers", loaded));
}

TEST(Resume, CopiesOfWhatIsSavedAreToldBesideThePeak) {
  Config config = forty_steps();
  for (const StateWrite write : {StateWrite::Background, StateWrite::Wait}) {
    config.state.write = write;
    const TrainResult result = run_in(config, scratch("resume/copies"));
    if (write == StateWrite::Background) {
      EXPECT_GT(result.peaks.copies, 3 * result.parameters * 4) << "weights and two moments";
    } else {
      EXPECT_EQ(result.peaks.copies, 0);
    }
    EXPECT_LE(result.memory.allocated_peak, result.peaks.predicted + result.peaks.copies);
  }
}

TEST(Resume, AdaptersBesideFrozenWeights) {
  for (const BaseWeights weights : {BaseWeights::Fp32, BaseWeights::Packed}) {
    if (weights == BaseWeights::Packed && !testing::test_device().is_cpu()) continue;  // which only the CPU has
    const std::string name(word(weights));
    const fs::path folder = scratch("resume/lora-" + name);
    run_in(lora(weights), folder);
    const Outcome whole = outcome(folder);
    EXPECT_GT(whole.losses.at(1)[0], whole.losses.at(kSteps)[0]);
    Config other = lora(weights);
    other.data.workers = 2;
    expect_same(whole, resumed(folder, "lora-again-" + name, other));
  }
}

/// The optimizer has copies of them in fp32, which a state must have.
TEST(Resume, AllWeightsInBf16) {
  Config config = lora(BaseWeights::Bf16);
  config.lora = {};
  config.optimizer.learning_rate = 2e-5;
  config.optimizer.warmup_steps = 0;
  const fs::path folder = scratch("resume/bf16");
  run_in(config, folder);
  const Outcome whole = outcome(folder);
  const auto optimizer = read_text(folder / "state" / state::state_name(kSteps) / "optimizer.safetensors");
  EXPECT_THAT(optimizer, HasSubstr("\"master.model.embed_tokens.weight\":{\"dtype\":\"F32\""));
  EXPECT_GT(whole.losses.at(1)[0], whole.losses.at(kSteps)[0]);
  expect_same(whole, resumed(folder, "bf16-again", config));
}

TEST(Resume, RowsOfDocuments) {
  const fs::path texts = scratch("resume/texts");
  for (int i = 0; i < 60; ++i)
    std::ofstream(texts / std::to_string(i)) << std::string(5 + i % 23, static_cast<char>('a' + i % 26));
  Config config = lora(BaseWeights::Fp32);
  config.data.path = texts;
  config.data.packing = Packing::Documents;
  config.train.validate_every = config.train.validation_batches = 0;
  config.data.validation_fraction = 0;
  const fs::path folder = scratch("resume/packed");
  run_in(config, folder);
  const Outcome whole = outcome(folder);
  EXPECT_GT(whole.losses.at(1)[0], whole.losses.at(kSteps)[0]);
  expect_same(whole, resumed(folder, "packed-again", config));
}

TEST(Resume, TakesAnOlderStateWhenTheNewestIsDamaged) {
  const fs::path folder = scratch("resume/damaged");
  Config config = forty_steps();
  config.state.every = 10;
  config.state.last = 10;
  run_in(config, folder);
  const Outcome whole = outcome(folder);
  fs::remove_all(folder / "state" / state::state_name(kSteps));
  fs::resize_file(folder / "state" / state::state_name(30) / "weights.safetensors", 1000);
  const TrainResult result = run_in(config, folder, Start::Resume);
  EXPECT_EQ(result.resumed_from, kHalf);
  EXPECT_EQ(outcome(folder).files, whole.files);
}

TEST(Resume, WhereNoStateIsWholeItRefusesToBeginAnew) {
  const fs::path folder = scratch("resume/none-whole");
  Config config = forty_steps();
  config.train.steps = 2;
  run_in(config, folder);
  fs::resize_file(folder / "state" / state::state_name(2) / "weights.safetensors", 1000);
  EXPECT_THROW(run_in(config, folder, Start::Resume), Error);
  EXPECT_THAT(read_text(folder / "metrics.jsonl"), HasSubstr("\"step\":1"));  // nothing was overwritten
}

TEST(Resume, ANewRunPutsAnEarlierOneAside) {
  const fs::path folder = scratch("resume/aside");
  Config config = forty_steps();
  config.train.steps = 4;
  run_in(config, folder);
  config.train.steps = 2;
  fs::create_directory(folder / "adapter");
  write_text(folder / "adapter" / "adapter_config.json", "{}");
  EXPECT_EQ(run_in(config, folder).states_saved, 1);
  EXPECT_TRUE(fs::exists(folder / "earlier-1" / "state" / state::state_name(4)));
  EXPECT_TRUE(fs::exists(folder / "earlier-1" / "adapter"));
  EXPECT_THAT(read_text(folder / "earlier-1" / "metrics.jsonl"), HasSubstr("\"step\":3"));
  EXPECT_TRUE(fs::exists(folder / "state" / state::state_name(2)));
  EXPECT_FALSE(fs::exists(folder / "state" / state::state_name(4)));
  config.train.steps = 6;
  EXPECT_EQ(run_in(config, folder / "earlier-1", Start::Resume).resumed_from, 4) << "it can go on";
}

/// A folder in which a run of two steps has ended.
class EarlierRun : public ::testing::Test {
 protected:
  EarlierRun() : config(forty_steps()), folder(scratch("resume/earlier")) {
    config.train.steps = 2;
    run_in(config, folder);
    metrics_ = read_text(folder / "metrics.jsonl");
  }
  void expect_it_is_there() const {
    EXPECT_TRUE(fs::exists(folder / "state" / state::state_name(2)));
    EXPECT_EQ(read_text(folder / "metrics.jsonl"), metrics_);
  }
  Config config;
  fs::path folder;

 private:
  std::string metrics_;
};

TEST_F(EarlierRun, StaysWhenTheNextCannotBePlanned) {
  config.memory.budget = 100_KiB;
  EXPECT_THROW(run_in(config, folder), Error);
  expect_it_is_there();
}

TEST_F(EarlierRun, StaysWhenTheNextIsStoppedBeforeItsFirstStep) {
  config.output.folder = folder;
  const InterruptScope interruptible;
  TrainOptions options;
  bool ended = false;
  options.before = [](Experiment&) { std::raise(SIGTERM); };
  options.after = [&](Experiment&, const TrainResult&) { ended = true; };
  report::Progress silent = report::Progress::silent();
  const TrainResult result = train(config, silent, options);
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.steps, 0);
  EXPECT_FALSE(ended);
  expect_it_is_there();
}

TEST_F(EarlierRun, StaysWhenTheNextIsStoppedWhileItIsRecorded) {
  config.output.folder = folder;
  const InterruptScope interruptible;
  TrainOptions options;
  int backward_passes = 0;
  options.before = [&](Experiment& experiment) {
    experiment.optimizer().parameters().back().register_hook([&](const at::Tensor&) {
      ++backward_passes;
      std::raise(SIGTERM);
    });
  };
  ::testing::internal::CaptureStderr();
  report::Progress silent = report::Progress::silent();
  const TrainResult result = train(config, silent, options);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("stopping as soon as this step is done"));
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.steps, 0);
  EXPECT_EQ(backward_passes, 1) << "of the recording, which ends there";
  expect_it_is_there();
}

TEST(Resume, TwoRunsInOneFolderAreRefused) {
  const fs::path folder = scratch("resume/two");
  Config config = forty_steps();
  config.train.steps = 1;
  config.output.folder = folder;
  std::string refusal;
  TrainOptions options;
  options.before = [&](Experiment&) { refusal = snug::testing::fault([&] { run_in(config, folder); }); };
  report::Progress silent = report::Progress::silent();
  EXPECT_EQ(train(config, silent, options).steps, 1);
  EXPECT_THAT(refusal, HasSubstr("another run writes to"));
  EXPECT_EQ(run_in(config, folder).steps, 1);
}

TEST(Resume, WithoutBatchesOfItThereIsNoValidation) {
  Config config = forty_steps();
  config.train.steps = 1;
  config.train.validate_every = config.train.validation_batches = 0;
  EXPECT_EQ(run_in(config, scratch("resume/unvalidated")).validation_loss, std::nullopt);
}

TEST(Resume, AValidationThatIsAskedForNeedsBatches) {
  Config config = forty_steps();
  config.train.validate_every = 1;
  config.data.validation_fraction = 0;
  try {
    run_in(config, scratch("resume/no_validation_split"));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("has no window of"));
  }
}

TEST(Resume, ThePlanIsInTheStateAndCanBeFollowed) {
  const fs::path folder = scratch("resume/plan");
  Config config = forty_steps();
  config.memory.budget = plan::Percent{80};
  config.train.steps = 2;
  const TrainResult result = run_in(config, folder);
  TrainOptions options;
  options.plan = plan::read_plan(folder / "state" / state::state_name(2) / "plan.json");
  EXPECT_EQ(options.plan->plan, result.plan);
  config.memory.budget = std::nullopt;
  config.output.folder = scratch("resume/plan-again");
  report::Progress silent = report::Progress::silent();
  EXPECT_EQ(train(config, silent, options).plan.budget, result.plan.budget);
}

TEST(Resume, AReplacedTextIsRefused) {
  const fs::path folder = scratch("resume/replaced"), text = folder / "text";
  fs::copy_file(text_file(), text);
  Config config = forty_steps();
  config.data.path = text;
  config.train.steps = 2;
  run_in(config, folder);
  std::string other = read_text(text);
  other[other.size() / 2] ^= 1;
  std::ofstream(text, std::ios::binary) << other << "more";
  EXPECT_THROW(run_in(config, folder, Start::Resume), UsageError);
}

TEST(Resume, ADoneRunReportsItsLosses) {
  const fs::path folder = scratch("resume/done");
  Config config = forty_steps();
  config.train.steps = 3;
  const TrainResult whole = run_in(config, folder), again = run_in(config, folder, Start::Resume);
  EXPECT_EQ(again.steps, 3);
  EXPECT_EQ(again.loss_first, whole.loss_first);
  EXPECT_EQ(again.loss_last, whole.loss_last);
}

TEST(Resume, BeginsAtTheFirstStepWhereThereIsNoState) {
  const fs::path folder = scratch("resume/none");
  Config config = forty_steps();
  config.train.steps = 3;
  config.state.every = 0;
  const TrainResult result = run_in(config, folder, Start::Resume);
  EXPECT_EQ(result.resumed_from, 0);
  EXPECT_EQ(result.steps, 3);
  EXPECT_EQ(result.states_saved, 1) << "what was trained is not lost";
  EXPECT_TRUE(fs::exists(folder / "state" / state::state_name(3)));
}

TEST(Resume, AFullDiskIsToldAtTheEnd) {
  const fs::path folder = scratch("resume/full");
  std::ofstream(folder / "state") << "a file where the folder should be";
  Config config = forty_steps();
  config.train.steps = 3;
  EXPECT_THROW(run_in(config, folder), Error);
  EXPECT_THAT(read_text(folder / "metrics.jsonl"), HasSubstr("\"step\":2")) << "it ran to its end";
}

}  // namespace
}  // namespace snug::train
