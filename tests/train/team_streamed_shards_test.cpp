// Runs of several processes whose shards are streamed from a tier.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "snug/base/errors.h"
#include "snug/train/experiment.h"
#include "snug/train/trainer.h"
#include "tests/parallel/processes.h"
#include "tests/train/team_run.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;
using testing::folder_of;
using testing::in_processes;
using testing::kSixSteps;
using testing::optimizer_after;
using testing::run_in;
using testing::six_steps;
using testing::team_of;
using testing::weights_after;

/// ZeRO's shards of it on the host: of no other bits, within a budget that has no room for them, saved and resumed.
TEST(Team, StreamsWhatOptimizersKeepOfShards) {
  const fs::path folder = folder_of("zero_offload");
  in_processes(2, [&](parallel::World& world) {
    for (const ShardOf shard : {ShardOf::Gradients, ShardOf::Parameters}) {
      Config config = six_steps(folder);
      config.model.width = 192;
      config.parallel.shard = shard;
      const std::string name(word(shard));
      const TrainResult whole = run_in(config, folder / (name + "_whole"), team_of(world));
      Bytes kept = 0;
      {
        Config unsaved = config;
        unsaved.state = {};
        Experiment experiment(unsaved, team_of(world));
        for (const at::Tensor& tensor : experiment.optimizer().state()) kept += static_cast<Bytes>(tensor.nbytes());
      }
      Config offloaded = config;
      // The budgets of processes with unequal shards are the same.
      const auto peaks = team_of(world).gather({static_cast<double>(whole.peaks.predicted), static_cast<double>(kept)});
      offloaded.memory.budget = plan::BudgetRequest(static_cast<Bytes>(peaks[0] - peaks[1] * 6 / 10));
      offloaded.memory.host_budget = plan::BudgetRequest(1_GiB);
      offloaded.memory.optimizer = KeptIn::Streamed;
      offloaded.train.steps = 3;
      offloaded.optimizer.schedule = LearningRate::Constant;
      EXPECT_LE(run_in(offloaded, folder / name, team_of(world)).memory.allocated_peak,
                static_cast<Bytes>(peaks[0] - peaks[1] * 6 / 10));
      offloaded.train.steps = kSixSteps;
      EXPECT_EQ(run_in(offloaded, folder / name, team_of(world), Start::Resume).resumed_from, 3);
      Config plain = config;
      plain.optimizer.schedule = LearningRate::Constant;
      (void)run_in(plain, folder / (name + "_constant"), team_of(world));
    }
  });
  for (const std::string name : {"gradients", "parameters"}) {
    EXPECT_TRUE(weights_after(folder / name, kSixSteps) == weights_after(folder / (name + "_constant"), kSixSteps));
    EXPECT_TRUE(optimizer_after(folder / name, kSixSteps) == optimizer_after(folder / (name + "_constant"), kSixSteps));
  }
}

/// Of weights as well (ZeRO-Infinity), on the host and on a disk, with gradients in several micro-batches: each process
/// reads its own there for all that ask for them. No bit differs, the budget has no room for them, and what was saved
/// goes on without.
TEST(Team, StreamsItsShardsOfWeights) {
  const fs::path folder = folder_of("parameter_offload");
  Config config = six_steps(folder);
  config.model.width = 192;
  config.parallel.shard = ShardOf::Parameters;
  config.optimizer.schedule = LearningRate::Constant;  // of any number of steps
  in_processes(2, [&](parallel::World& world) {
    const TrainResult whole = run_in(config, folder / "whole", team_of(world));
    Config now = config;
    now.memory.weights = KeptIn::Streamed;
    now.memory.budget = plan::BudgetRequest(1_GiB);
    Bytes shards = 0;  // of weights, and twice as much of moments
    {
      Config unsaved = config;
      unsaved.state = {};
      Experiment experiment(unsaved, team_of(world));
      for (const at::Tensor& tensor : experiment.optimizer().parameters())
        shards += static_cast<Bytes>(tensor.nbytes());
    }
    const auto of_first =
        team_of(world).gather({static_cast<double>(whole.peaks.predicted), static_cast<double>(shards)});
    const auto budget = static_cast<Bytes>(of_first[0] - 2 * of_first[1]);
    now.memory.budget = plan::BudgetRequest(budget);
    for (const bool on_disk : {false, true}) {
      (on_disk ? now.memory.disk_budget : now.memory.host_budget) = plan::BudgetRequest(1_GiB);
      if (on_disk) now.memory.host_budget.reset();
      const fs::path run = folder / (on_disk ? "disk" : "host");
      now.train.steps = 3;
      EXPECT_LE(run_in(now, run, team_of(world)).memory.allocated_peak, budget);
      now.train.steps = kSixSteps;
      EXPECT_EQ(run_in(now, run, team_of(world), Start::Resume).resumed_from, 3);
    }
    Config accumulated = config;
    accumulated.train.accumulate = 2;
    (void)run_in(accumulated, folder / "accumulated", team_of(world));
    accumulated.memory = now.memory;
    (void)run_in(accumulated, folder / "accumulated_disk", team_of(world));
  });
  for (const char* const name : {"host", "disk"}) {
    EXPECT_TRUE(weights_after(folder / name, kSixSteps) == weights_after(folder / "whole", kSixSteps)) << name;
    EXPECT_TRUE(optimizer_after(folder / name, kSixSteps) == optimizer_after(folder / "whole", kSixSteps)) << name;
  }
  EXPECT_TRUE(weights_after(folder / "accumulated_disk", kSixSteps) ==
              weights_after(folder / "accumulated", kSixSteps));
}

}  // namespace
}  // namespace snug::train
