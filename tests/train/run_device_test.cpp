#include "snug/train/run_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "snug/report/progress.h"
#include "snug/train/experiment.h"
#include "snug/train/trainer.h"
#include "tests/base/fault.h"
#include "tests/train/two_blocks.h"

namespace snug::train {
namespace {

using snug::testing::fault;
using ::testing::HasSubstr;

TEST(RunDevice, IsReadAndNotLookedFor) {
  EXPECT_EQ(memory::device_named("cpu"), c10::Device(c10::kCPU));
  EXPECT_EQ(memory::device_named("cuda:1"), c10::Device(c10::kCUDA, 1));
  EXPECT_THAT(fault([] { memory::device_named("nonsense"); }), HasSubstr("\"nonsense\" names no device"));
}

TEST(RunDevice, IsRefusedWhereItIsNotThereOrCannotHoldTheWeights) {
  Config config;
  config.train.device = "xla";
  EXPECT_THAT(fault([&] { device_of(config); }), HasSubstr("no backend for xla"));
  config.train.device = "cuda";
  config.model.weights = BaseWeights::Packed;
  EXPECT_THAT(fault([&] { device_of(config); }), HasSubstr("unpacked by the CPU"));
}

/// Gradients have bits of their own there: some of our operators have kernels for the CPU alone.
TEST(RunDevice, HasTheWeightsAndBatchesThatTheCpuWouldHave) {
  const auto of = [](const std::string& name, const std::string& device) {
    Config config = two_blocks("run_device/" + name);
    config.train.device = device;
    Experiment experiment(config);
    const data::Batch batch = experiment.train_batch(0);
    experiment.loss(batch).backward();
    EXPECT_EQ(experiment.memory().device(), experiment.device());
    for (const at::Tensor& t : experiment.optimizer().state()) EXPECT_EQ(t.device(), experiment.device());
    EXPECT_EQ(batch.target.device(), experiment.device());
    std::vector<at::Tensor> found{batch.input.cpu(), batch.target.cpu()};
    for (const at::Tensor& p : experiment.model().parameters()) {
      EXPECT_EQ(p.device(), experiment.device());
      EXPECT_EQ(p.grad().device(), experiment.device());
      found.push_back(p.detach().cpu());
    }
    return found;
  };
  const auto there = of("there", snug::testing::test_device().str()), here = of("here", "cpu");
  ASSERT_EQ(there.size(), here.size());
  for (std::size_t i = 0; i < here.size(); ++i) EXPECT_TRUE(at::equal(there[i], here[i])) << i;
}

TEST(RunDevice, ItsStepsLieInAnArenaWhereThatIsAskedFor) {
  if (snug::testing::test_device().is_cpu()) {
    Config config = two_blocks("run_device/arena");
    set_key(config, "memory.arena=true");
    EXPECT_THAT(fault([&] { validate(config); }),
                HasSubstr("memory.arena = true does nothing here: it applies to accelerators"));
    return;
  }
  const auto run = [](bool arena) {
    Config config = two_blocks(arena ? "run_device/arena" : "run_device/no_arena");
    config.train.steps = 6;
    config.memory.arena = arena;
    set_key(config, "memory.budget=80%");
    report::Progress silent = report::Progress::silent();
    return train(config, silent);
  };
  const TrainResult with = run(true), without = run(false);
  EXPECT_EQ(with.loss_last, without.loss_last);
  ASSERT_TRUE(with.arena);
  EXPECT_FALSE(without.arena);
  EXPECT_GE(with.arena->bytes, with.arena->highest);
  EXPECT_GT(with.arena->placed, with.arena->elsewhere);
}

}  // namespace
}  // namespace snug::train
