// memory.weights = "streamed": the command trains models that are larger than their budget, to the same bits.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/base/text_file.h"
#include "snug/memory/owned_contents.h"
#include "snug/report/progress.h"
#include "snug/state/training_state.h"
#include "snug/train/bench.h"
#include "snug/train/choose.h"
#include "snug/train/experiment.h"
#include "snug/train/largest.h"
#include "snug/train/planned_experiment.h"
#include "snug/train/trainer.h"
#include "snug/train/training_step.h"
#include "snug/train/verify.h"
#include "tests/equivalence/bitwise.h"
#include "tests/train/packed_file.h"
#include "tests/train/two_blocks.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;

/// Weights and moments of 56 MiB.
Config six_blocks(const std::string& name) {
  Config c = two_blocks("streamed_" + name);
  c.model.blocks = 6;
  c.model.width = 256;
  c.model.heads = 4;
  c.train.batch = 2;
  c.train.steps = 3;
  set_key(c, "memory.host_budget=1GiB");
  return c;
}

Config streamed(Config c, const std::string& budget) {
  set_key(c, "memory.budget=" + budget);
  c.memory.weights = KeptIn::Streamed;
  return c;
}

Bytes bytes_of(const Experiment& experiment) {
  Bytes bytes = 0;
  for (const at::Tensor& p : experiment.model().parameters()) bytes += 3 * static_cast<Bytes>(p.nbytes());
  return bytes;
}

/// The budget is beside what the test's process has already.
std::string with(Bytes bytes) {
  return std::to_string(memory::device_memory(testing::test_device()).stats().allocated + bytes);
}

TEST(StreamedWeights, OfFourTimesTheBudgetChangeNoBit) {
  for (const std::vector<std::string>& keys :
       std::vector<std::vector<std::string>>{{"optimizer.clip_norm=1"},
                                             {"optimizer.clip_norm=0", "optimizer.in_backward=true"},
                                             {"train.accumulate=2", "memory.host_budget=", "memory.disk_budget=1GiB"},
                                             {"precision.compute=fp16"}}) {
    SCOPED_TRACE(keys.front());
    Config config = streamed(six_blocks("bits"), with(13_MiB));
    for (const std::string& key : keys) set_key(config, key);
    EXPECT_GE(bytes_of(Experiment(six_blocks("bits"))), 4 * 13_MiB);
    report::Progress silent = report::Progress::silent();
    const VerifyResult result = verify(config, 3, 1, silent);
    EXPECT_EQ(result.different, 0) << result.first_different;
    EXPECT_EQ(result.compared, 3);
    EXPECT_LE(result.memory.mapped_peak, result.plan.budget);
    EXPECT_LE(result.memory.allocated_peak, result.predicted_peak);
  }
}

/// What the optimizer keeps alone: a half of what there is, and weights stay where they are.
TEST(StreamedWeights, OfTheOptimizersStateAloneChangeNoBit) {
  report::Progress silent = report::Progress::silent();
  Config config = six_blocks("optimizer");
  const Experiment whole(config);
  const Bytes weights = bytes_of(whole) / 3;
  for (const char* const kind : {"adamw", "adamw_8bit"}) {
    config.optimizer.kind = kind;
    // Weights, gradients, and little else: not two moments more in fp32.
    set_key(config, "memory.budget=" + with(2 * weights + 8_MiB));
    config.memory.optimizer = KeptIn::Streamed;
    const VerifyResult result = verify(config, 3, 1, silent);
    EXPECT_EQ(result.different, 0) << result.first_different;
    EXPECT_EQ(result.compared, 3);
    EXPECT_LE(result.memory.mapped_peak, result.plan.budget) << kind;
    EXPECT_LE(result.memory.allocated_peak, result.predicted_peak) << kind;
  }
}

/// Blocks of a GGUF file are larger than the budget, too.
TEST(StreamedWeights, ThatArePackedChangeNoBit) {
  Config config = two_blocks("streamed_packed");
  config.model = {};
  config.model.kind = "llama";
  config.model.path = fs::path(config.data.path).parent_path() / "packed.gguf";
  testing::write_packed_llama(config.model.path, {.layers = 6});
  config.model.weights = BaseWeights::Packed;
  config.model.sequence = 64;
  config.lora.rank = 4;
  config.data.tokenizer = "bytes";
  config.train.batch = 1;
  set_key(config, "memory.host_budget=1GiB");
  const auto packed = static_cast<Bytes>(fs::file_size(config.model.path));
  EXPECT_GT(packed, 3_MiB);
  report::Progress silent = report::Progress::silent();
  const VerifyResult result = verify(streamed(config, with(3_MiB)), 3, 1, silent);
  EXPECT_EQ(result.different, 0) << result.first_different;
  EXPECT_EQ(result.compared, 3);
  EXPECT_LE(result.memory.mapped_peak, result.plan.budget);
}

TEST(StreamedWeights, AreTakenWhereTheStepDoesNotFitWithoutAndNotWhereItDoes) {
  report::Progress silent = report::Progress::silent();
  for (const bool fits : {false, true}) {
    Config config = six_blocks("choice");
    config.optimizer.clip_norm = 1;
    set_key(config, "memory.budget=" + with(fits ? 1_GiB : 24_MiB));
    EXPECT_EQ(choose(config, silent).config.memory.weights, fits ? KeptIn::Device : KeptIn::Streamed);
  }
}

TEST(StreamedWeights, AreSavedAndResumedAsOthersAre) {
  const auto trained = [](Config config, const std::string& folder, const std::string& budget) {
    config.output.folder = testing::scratch("streamed_" + folder);
    if (budget.empty()) {
      config.memory.host_budget.reset();
    } else {
      config = streamed(config, budget);
    }
    report::Progress silent = report::Progress::silent();
    for (const std::int64_t steps : {3, 5}) {
      config.train.steps = steps;
      const TrainResult result = train(
          config, silent, {.plan = {}, .start = steps > 3 ? Start::Resume : Start::Anew, .before = {}, .after = {}});
      EXPECT_EQ(result.resumed_from, steps > 3 ? 3 : 0);
      EXPECT_EQ(result.evictions, 0);
    }
    const std::filesystem::path state = std::filesystem::path(config.output.folder) / "state" / state::state_name(5);
    return read_text(state / "weights.safetensors") + read_text(state / "optimizer.safetensors");
  };
  Config config = six_blocks("resumed");
  config.optimizer.schedule = LearningRate::Constant;
  const std::string plain = trained(config, "plain", "");
  for (const StateWrite write : {StateWrite::Background, StateWrite::Wait}) {
    config.state.write = write;
    EXPECT_TRUE(trained(config, "streamed", with(13_MiB)) == plain);
  }
}

TEST(StreamedWeights, AreNothingThatBenchCompares) {
  report::Progress silent = report::Progress::silent();
  EXPECT_THROW(
      bench(streamed(six_blocks("bench"), with(24_MiB)), {.budgets = {plan::BudgetRequest(Bytes{1_GiB})}}, silent),
      UsageError);
}

TEST(StreamedWeights, ComeAndGoAsPredicted) {
  const Config config = streamed(six_blocks("predicted"), with(20_MiB));
  Experiment experiment(config);
  PlannedExperiment planned = plan_experiment(experiment, Kinds::Training);
  Session session = session_of(experiment, std::move(planned.kinds), planned.budget);
  TrainingStep step(experiment);
  replay::StreamWindow::Totals before;
  for (std::int64_t i = 0; i < 3; ++i) {
    before = experiment.streamed()->totals();
    (void)step.make_gradients(session, experiment.train_batch(i), i, i);
    step.update(i);
  }
  const replay::StreamWindow::Totals after = experiment.streamed()->totals();
  const auto in = static_cast<double>(after.in - before.in), out = static_cast<double>(after.out - before.out);
  EXPECT_GT(planned.window.cost.in, 0);
  EXPECT_NEAR(in, static_cast<double>(planned.window.cost.in), 0.25 * in);
  EXPECT_NEAR(out, static_cast<double>(planned.window.cost.out), 0.25 * out);
}

TEST(StreamedWeights, TheSmallestBudgetDoesNotDependOnTheOneThatIsAsked) {
  std::vector<Bytes> floors;
  Bytes asked = 0;
  for (const Bytes budget : {20_MiB, 30_MiB}) {
    Experiment experiment(streamed(six_blocks("floor"), with(budget)));
    const PlannedExperiment planned = plan_experiment(experiment, Kinds::Training);
    EXPECT_GT(planned.window.spare, 0);
    floors.push_back(smallest_budget(planned.kinds, planned.window));
    asked = asked > 0 ? asked : planned.budget->limit;
  }
  EXPECT_LT(floors[1], asked);
  EXPECT_NEAR(static_cast<double>(floors[1]), static_cast<double>(floors[0]), 0.02 * static_cast<double>(floors[0]));
}

TEST(StreamedWeights, TheLargestBatchFitsWithItsWindow) {
  const Bytes budget = memory::device_memory(testing::test_device()).stats().allocated + 24_MiB;
  report::Progress silent = report::Progress::silent();
  const Largest found = largest(streamed(six_blocks("largest"), std::to_string(budget)), Extent::Batch, budget, silent);
  EXPECT_GT(found.size, 2);
  EXPECT_LE(found.measured_peak, budget);
  EXPECT_LE(found.predicted_peak, budget);
  EXPECT_GT(found.predicted_peak, budget / 2);
}

TEST(StreamedWeights, NeedABudgetInBytesAndATier) {
  Config config = six_blocks("needs");
  config.memory.weights = KeptIn::Streamed;
  for (const char* budget : {"", "50%"}) {
    set_key(config, std::string("memory.budget=") + budget);
    EXPECT_THROW(validate(config), UsageError) << budget;
  }
  set_key(config, "memory.budget=1GiB");
  EXPECT_NO_THROW(validate(config));
  config.memory.host_budget.reset();
  EXPECT_THROW(validate(config), UsageError);
}

}  // namespace
}  // namespace snug::train
