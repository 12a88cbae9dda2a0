// Runs of several processes that have layers, or sequences, in parts.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/report/progress.h"
#include "snug/state/safetensors.h"
#include "snug/state/training_state.h"
#include "snug/train/saved_model.h"
#include "snug/train/trainer.h"
#include "tests/parallel/processes.h"
#include "tests/train/parts_run.h"
#include "tests/train/team_run.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;
using testing::config_of;
using testing::expect_close;
using testing::folder_of;
using ::testing::HasSubstr;
using testing::in_processes;
using testing::InParts;
using testing::kSixSteps;
using testing::lines_of;
using testing::name_of;
using testing::optimizer_after;
using testing::outcomes_of;
using testing::run_in;
using testing::run_parts;
using testing::six_steps;
using testing::team_of;
using testing::weights_after;

const std::vector<InParts>& layouts() {
  static const std::vector<InParts> all = {
      {.kind = "llama", .processes = 2, .tensor = 2, .sequences = true},
      {.kind = "gpt", .processes = 4, .tensor = 2, .sequences = true, .shard = ShardOf::Parameters, .percent = 90},
      {.kind = "gpt2", .processes = 2, .tensor = 2, .kept_in_parts = true},
      {.kind = "llama", .processes = 2, .context = 2},
      {.kind = "llama", .processes = 4, .context = 2, .context_by = models::ContextMethod::Ring, .percent = 95},
      {.kind = "llama", .processes = 4, .shard = ShardOf::Parameters, .shard_degree = 2, .percent = 95},
      {.kind = "gpt2", .processes = 2, .pipeline = 2, .schedule = "interleaved(2)"},
      {.kind = "llama",
       .processes = 4,
       .tensor = 2,
       .pipeline = 2,
       .sequences = true,
       .vocabulary = 769,
       .percent = 90},
  };
  return all;
}

const std::vector<InParts>& more_layouts() {
  static const std::vector<InParts> all = {
      {.kind = "gpt", .processes = 2, .tensor = 2},
      {.kind = "gpt",
       .processes = 4,
       .context = 2,
       .shard = ShardOf::Parameters,
       .context_by = models::ContextMethod::Ring,
       .percent = 90},
      {.kind = "gpt2",
       .processes = 4,
       .context = 2,
       .pipeline = 2,
       .context_by = models::ContextMethod::Ring,
       .percent = 92},
      {.kind = "gpt2", .processes = 4, .tensor = 4, .sequences = true},
      {.kind = "gpt", .processes = 4, .tensor = 2, .shard = ShardOf::Optimizer, .vocabulary = 257},
      {.kind = "gpt", .processes = 4, .shard = ShardOf::Optimizer, .shard_degree = 2},
      {.kind = "gpt2", .processes = 8, .tensor = 2, .sequences = true, .shard = ShardOf::Gradients, .shard_degree = 2},
      {.kind = "gpt", .processes = 4, .context = 2, .shard = ShardOf::Parameters, .shard_degree = 1, .percent = 95},
      {.kind = "gpt", .processes = 2, .pipeline = 2},
      {.kind = "llama", .processes = 4, .tensor = 2, .pipeline = 2, .kept_in_parts = true, .percent = 90},
      {.kind = "llama", .processes = 4, .pipeline = 2, .shard = ShardOf::Optimizer, .percent = 90, .micro_batches = 8},
  };
  return all;
}

/// A run without a budget, and one within a budget that has to replay: the same bits, and the plan is followed.
void is_the_same_under_a_plan(const InParts& parts, const fs::path& folder, double dropout) {
  const std::string name = name_of(parts);
  in_processes(parts.processes, [&](parallel::World& world) {
    Config plain = config_of(folder, parts, dropout);
    plain.state.write = StateWrite::Wait;  // whether copies of it are there still is by chance
    const TrainResult free = run_parts(plain, folder / "free", world);
    EXPECT_EQ(free.steps, parts.steps) << name;
    EXPECT_EQ(free.trained_parameters, free.parameters) << "whole ones";
    EXPECT_LE(free.memory.allocated_peak, free.peaks.predicted) << name;
    const std::vector<double> peaks = team_of(world).gather({static_cast<double>(free.memory.allocated_peak)});
    // Stages: by what is there once, wherever it is there. Else: by two scalars, of the one that has most.
    const auto predicted = static_cast<double>(free.peaks.predicted);
    const double measured =
        parts.pipeline > 1 ? peaks[static_cast<std::size_t>(world.all()->rank())] : *std::ranges::max_element(peaks);
    EXPECT_GE(measured, parts.pipeline > 1 ? 0.8 * predicted : predicted - 256) << name;

    Config within = plain;
    within.memory.budget = plan::Percent{static_cast<double>(parts.percent)};
    const TrainResult result = run_parts(within, folder / "planned", world);
    EXPECT_GT(result.replayed_ops, 0) << name;
    EXPECT_EQ(result.evictions, 0) << name;
    EXPECT_LE(result.memory.allocated_peak, result.plan.budget) << name;
    EXPECT_LT(result.memory.allocated_peak, free.memory.allocated_peak) << name;
    EXPECT_LE(result.memory.allocated_peak, result.peaks.predicted) << name;
  });
  EXPECT_EQ(lines_of(folder / "planned"), lines_of(folder / "free")) << name;
  EXPECT_TRUE(weights_after(folder / "planned", parts.steps) == weights_after(folder / "free", parts.steps)) << name;
  EXPECT_TRUE(optimizer_after(folder / "planned", parts.steps) == optimizer_after(folder / "free", parts.steps))
      << name;
}

/// Losses, norms of gradients, validation and weights, after AdamW has clipped and updated a few times.
void are_close_to_one_process_and_the_same_under_a_plan(const std::vector<InParts>& all) {
  for (const InParts& parts : all) {
    const std::string name = name_of(parts);
    const fs::path folder = folder_of("parts_" + name);
    is_the_same_under_a_plan(parts, folder, 0);
    if (testing::is_started_by_test()) continue;
    Config one = config_of(folder, parts);
    one.parallel = {};
    one.train.accumulate *= parts.replicas();
    (void)run_in(one, folder / "one", Team());
    expect_close(folder / "free", folder / "one", name, parts.steps);
  }
}

TEST(TeamInParts, IsCloseToOneProcessAndTheSameUnderAPlan) {
  are_close_to_one_process_and_the_same_under_a_plan(layouts());
}

TEST(TeamInParts, IsSoInMoreLayouts) { are_close_to_one_process_and_the_same_under_a_plan(more_layouts()); }

/// All of them, ten steps, and with dropout under a plan.
TEST(TeamInParts, IsSoAfterTenSteps) {
  std::vector<InParts> all = layouts();
  all.insert(all.end(), more_layouts().begin(), more_layouts().end());
  for (InParts& parts : all) parts.steps = 10;
  are_close_to_one_process_and_the_same_under_a_plan(all);
  for (InParts& parts : all) {
    if (parts.kind != "gpt2" || parts.context_by == models::ContextMethod::Ring) parts.kind = "gpt";  // has dropout
    is_the_same_under_a_plan(parts, folder_of("ten_dropped_" + name_of(parts)), 0.1);
  }
}

TEST(TeamInParts, IsTheSameUnderAPlanWithDropout) {
  for (const InParts& parts : {InParts{.processes = 2, .tensor = 2, .sequences = true},
                               InParts{.kind = "gpt2", .processes = 2, .pipeline = 2}})
    is_the_same_under_a_plan(parts, folder_of("dropped_parts_" + name_of(parts)), 0.1);
}

TEST(TeamInParts, HasTheSameBitsInShards) {
  const fs::path folder = folder_of("parts_in_shards");
  in_processes(4, [&](parallel::World& world) {
    for (const ShardOf shard : {ShardOf::None, ShardOf::Optimizer, ShardOf::Gradients, ShardOf::Parameters}) {
      const InParts parts{.processes = 4, .tensor = 2, .sequences = true, .shard = shard};
      (void)run_parts(config_of(folder, parts, 0.1), folder / std::string(word(shard)), world);
    }
  });
  for (const char* const other : {"optimizer", "gradients", "parameters"}) {
    EXPECT_EQ(lines_of(folder / other), lines_of(folder / "none")) << other;
    EXPECT_TRUE(weights_after(folder / other, kSixSteps) == weights_after(folder / "none", kSixSteps)) << other;
    EXPECT_TRUE(optimizer_after(folder / other, kSixSteps) == optimizer_after(folder / "none", kSixSteps)) << other;
  }
}

}  // namespace
}  // namespace snug::train
