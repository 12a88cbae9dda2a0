// Runs of several processes with the optimizer's state, gradients and weights in shards.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "snug/base/errors.h"
#include "snug/base/text_file.h"
#include "snug/report/progress.h"
#include "snug/train/experiment.h"
#include "snug/train/trainer.h"
#include "tests/parallel/processes.h"
#include "tests/train/team_run.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::folder_of;
using ::testing::HasSubstr;
using testing::in_processes;
using testing::is_one_process_with_as_many_micro_batches;
using testing::kSixSteps;
using testing::lines_of;
using testing::optimizer_after;
using testing::outcomes_of;
using testing::run_in;
using testing::six_steps;
using testing::team_of;
using testing::weights_after;

Config in_shards(const std::string& name, ShardOf shard) {
  Config config = six_steps(folder_of(name));
  config.parallel.shard = shard;
  return config;
}

TEST(Team, WithTheOptimizerInShardsHasTheSameBits) {
  is_one_process_with_as_many_micro_batches(2, "zero1", in_shards("zero1", ShardOf::Optimizer));
}
TEST(Team, WithGradientsInShardsHasTheBitsOfAllItsMicroBatches) {
  is_one_process_with_as_many_micro_batches(2, "zero2", in_shards("zero2", ShardOf::Gradients), 2);
}
TEST(Team, OfFourWithGradientsInShardsHasTheSameBits) {
  is_one_process_with_as_many_micro_batches(4, "zero2_four", in_shards("zero2_four", ShardOf::Gradients));
}
/// Wide enough that most of the weights are divided.
Config with_weights_in_shards(const std::string& name) {
  Config config = in_shards(name, ShardOf::Parameters);
  config.model.width = 96;
  return config;
}
TEST(Team, WithWeightsInShardsHasTheBitsOfAllItsMicroBatches) {
  is_one_process_with_as_many_micro_batches(2, "zero3", with_weights_in_shards("zero3"), 2, "95%");
}
TEST(Team, OfFourWithWeightsInShardsHasTheSameBits) {
  is_one_process_with_as_many_micro_batches(4, "zero3_four", with_weights_in_shards("zero3_four"));
}

TEST(Team, UpdatesShardsByEightBitsAndByChanceAsOneProcessDoes) {
  Config config = in_shards("zero2_bits", ShardOf::Gradients);
  config.optimizer.kind = "adamw_8bit";
  config.precision.compute = Compute::Bf16;
  config.precision.weights = TrainedWeights::Bf16;
  config.precision.updates = Updates::Stochastic;
  config.optimizer.groups = "*.bias: learning_rate=0.5";
  config.train.batch = 6;
  is_one_process_with_as_many_micro_batches(3, "zero2_bits", config);
}
TEST(Team, ScalesLossesOfShardsAsOneProcessDoes) {
  Config config = in_shards("zero2_fp16", ShardOf::Gradients);
  config.precision.compute = Compute::Fp16;
  config.precision.init_scale = 1e9;  // too much: it falls
  is_one_process_with_as_many_micro_batches(2, "zero2_fp16", config);
}

/// What the optimizer keeps, and gradients behind the backward pass, are a part each.
TEST(Team, TakesLessMemoryInShards) {
  const fs::path folder = folder_of("zero_memory");
  in_processes(2, [&](parallel::World& world) {
    std::map<ShardOf, Bytes> peak, kept;
    for (const ShardOf shard : {ShardOf::None, ShardOf::Optimizer, ShardOf::Gradients, ShardOf::Parameters}) {
      Config config = six_steps(folder);
      config.model.width = 192;  // weights are most of it
      // Without a budget all weights are kept, beside the shards, once they have been gathered.
      if (shard == ShardOf::Parameters) {
        const double of_first = team_of(world).gather({static_cast<double>(peak[ShardOf::Gradients])}).front();
        config.memory.budget = static_cast<Bytes>(of_first) * 85 / 100;
      }
      config.train.batch = 4;
      config.train.accumulate = 2;
      config.train.steps = 2;
      config.state.every = 0;
      config.state.last = StateConfig().last;
      config.parallel.shard = shard;
      peak[shard] = run_in(config, {}, team_of(world)).memory.allocated_peak;
      kept[shard] = 0;
      Experiment experiment(config, team_of(world));
      for (const at::Tensor& tensor : experiment.optimizer().state())
        kept[shard] += static_cast<Bytes>(tensor.nbytes());
    }
    EXPECT_NEAR(static_cast<double>(kept[ShardOf::Optimizer]) / static_cast<double>(kept[ShardOf::None]), 0.5, 0.02);
    EXPECT_EQ(kept[ShardOf::Gradients], kept[ShardOf::Optimizer]);
    EXPECT_LT(peak[ShardOf::Optimizer], peak[ShardOf::None] - kept[ShardOf::None] * 4 / 10);
    EXPECT_LT(peak[ShardOf::Gradients], peak[ShardOf::Optimizer]);
    EXPECT_LT(peak[ShardOf::Parameters], peak[ShardOf::Gradients]);
  });
}

/// 4 processes, then 2, then one, then 4: each micro-batch of the step is one of theirs, and every bit the same.
TEST(Team, GoesOnInShardsWithAnyNumberOfProcesses) {
  const fs::path folder = folder_of("resharded");
  Config config = six_steps(folder);
  config.model.width = 96;
  config.state.every = 0;
  const auto go_on = [&](std::int64_t steps, std::int64_t processes, ShardOf shard) {
    Config now = config;
    now.train.steps = steps;
    now.train.validate_every = 0;
    now.train.accumulate = 4 / processes;
    now.optimizer.schedule = LearningRate::Constant;  // of any number of steps
    now.parallel.shard = shard;
    return now;
  };
  const Start resume = Start::Resume;
  in_processes(4, [&](parallel::World& world) {
    (void)run_in(go_on(2, 4, ShardOf::Gradients), folder / "run", team_of(world));
  });
  in_processes(2, [&](parallel::World& world) {
    (void)run_in(go_on(4, 2, ShardOf::Parameters), folder / "run", team_of(world), resume);
  });
  if (!testing::is_started_by_test()) (void)run_in(go_on(5, 1, ShardOf::None), folder / "run", Team(), resume);
  in_processes(4, [&](parallel::World& world) {
    (void)run_in(go_on(7, 4, ShardOf::Optimizer), folder / "run", team_of(world), resume);
  });
  (void)run_in(go_on(7, 1, ShardOf::None), folder / "one", Team());
  EXPECT_TRUE(weights_after(folder / "run", 7) == weights_after(folder / "one", 7));
  EXPECT_TRUE(optimizer_after(folder / "run", 7) == optimizer_after(folder / "one", 7));
}

/// The same of moments in 8 bits, and of masters beside weights in bf16.
TEST(Team, GoesOnInShardsWhateverTheOptimizerKeeps) {
  for (const std::string kind : {"adamw_8bit", "lion"}) {
    const std::string name = "resharded_" + kind;
    Config config = in_shards(name, ShardOf::Gradients);
    const fs::path folder = fs::path(config.data.path).parent_path();
    config.optimizer.kind = kind;
    config.optimizer.clip_norm_order = kind == "lion" ? NormOrder::Largest : NormOrder::Sum;
    config.optimizer.clip_norm = 0.01;
    config.optimizer.schedule = LearningRate::Constant;
    config.precision.compute = Compute::Bf16;
    config.precision.weights = TrainedWeights::Bf16;
    config.state.every = 0;
    config.train.validate_every = 0;
    const auto go_on = [&](std::int64_t steps, std::int64_t processes) {
      Config now = config;
      now.train.steps = steps;
      now.train.accumulate = 3 / processes;
      now.train.batch = 6;
      return now;
    };
    in_processes(3, [&](parallel::World& world) { (void)run_in(go_on(2, 3), folder / "run", team_of(world)); });
    if (!testing::is_started_by_test()) {
      Config other = go_on(4, 1);
      other.train.accumulate = 2;
      EXPECT_THROW((void)run_in(other, folder / "run", Team(), Start::Resume), UsageError) << "other micro-batches";
      (void)run_in(go_on(4, 1), folder / "run", Team(), Start::Resume);
    }
    in_processes(
        3, [&](parallel::World& world) { (void)run_in(go_on(6, 3), folder / "run", team_of(world), Start::Resume); });
    if (testing::is_started_by_test()) continue;
    (void)run_in(go_on(6, 1), folder / "one", Team());
    EXPECT_TRUE(weights_after(folder / "run", 6) == weights_after(folder / "one", 6)) << kind;
    EXPECT_TRUE(optimizer_after(folder / "run", 6) == optimizer_after(folder / "one", 6)) << kind;
  }
}

/// Of stage 1 too, with micro-batches that stay with each process, under a budget.
TEST(Team, WithTheOptimizerInShardsHasTheBitsOfTheSameTeamWithout) {
  const fs::path folder = folder_of("zero1_accumulate");
  in_processes(2, [&](parallel::World& world) {
    for (const ShardOf shard : {ShardOf::None, ShardOf::Optimizer}) {
      Config config = six_steps(folder, 0.1);
      config.train.accumulate = 2;
      config.memory.budget = plan::parse_budget("85%");
      config.parallel.shard = shard;
      const TrainResult result = run_in(config, folder / std::string(word(shard)), team_of(world));
      EXPECT_LE(result.memory.allocated_peak, result.plan.budget);
      EXPECT_EQ(result.trained_parameters, result.parameters) << "in all processes together";
    }
  });
  EXPECT_EQ(lines_of(folder / "none"), lines_of(folder / "optimizer"));
  EXPECT_TRUE(weights_after(folder / "none", kSixSteps) == weights_after(folder / "optimizer", kSixSteps));
}

/// What ends all of them alike loses no step, though each has but a part of the state.
TEST(Team, InShardsSavesWhereAllHaveFailed) {
  const fs::path folder = folder_of("zero_nan");
  const auto config_of = [&](std::int64_t steps) {
    Config config = six_steps(folder);
    config.parallel.shard = ShardOf::Gradients;
    config.state.every = 0;
    config.train.steps = steps;
    config.train.detect_anomaly = true;
    config.train.validate_every = 0;
    return config;
  };
  in_processes(2, [&](parallel::World& world) {
    Config config = config_of(kSixSteps);
    config.output.folder = folder / "team";
    TrainOptions options;
    options.team = team_of(world);
    int passes = 0;
    options.before = [&](Experiment& experiment) {
      experiment.model().parameters().front().register_hook([&](const at::Tensor& gradient) {
        return ++passes > 5 ? gradient * std::numeric_limits<double>::quiet_NaN() : gradient;  // two are recordings
      });
    };
    report::Progress silent = report::Progress::silent();
    try {
      (void)train(config, silent, options);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("the norm of the gradients of step 4 is nan"));
    }
  });
  EXPECT_FALSE(weights_after(folder / "team", 3).empty());
  in_processes(2, [&](parallel::World& world) {
    EXPECT_EQ(run_in(config_of(4), folder / "team", team_of(world), Start::Resume).resumed_from, 3);
  });
}

TEST(Team, WithWeightsInShardsIsRefusedTogether) {
  const fs::path folder = folder_of("zero3_too_small");
  const auto ended = outcomes_of(2, [&](const parallel::Launched& launched) {
    Config config = six_steps(folder);
    config.model.width = 96;
    config.parallel.shard = ShardOf::Parameters;
    config.memory.budget = plan::parse_budget(launched.rank == 0 ? "30%" : "100%");
    (void)run_in(config, folder / "team", Team(parallel::World::meet(launched)));
  });
  EXPECT_EQ(ended[0].exit_code, 12) << ended[0].output;
  EXPECT_THAT(ended[0].output, HasSubstr("does not fit"));
  EXPECT_EQ(ended[1].exit_code, 11) << ended[1].output;
  EXPECT_THAT(ended[1].output, HasSubstr("process 0 of the group's 2"));
}

TEST(Team, InShardsIsRefusedByTrainWhereProcessesAreNotAlike) {
  const fs::path folder = folder_of("zero_unlike");
  const auto ended = outcomes_of(2, [&](const parallel::Launched& launched) {
    Config config = six_steps(folder);
    config.parallel.shard = launched.rank == 0 ? ShardOf::None : ShardOf::Gradients;
    (void)run_in(config, folder / "team", Team(parallel::World::meet(launched)));
  });
  for (const Ended& one : ended) {
    EXPECT_EQ(one.exit_code, 12) << one.output;
    EXPECT_THAT(one.output, HasSubstr(R"(parallel.shard is "none" in the process of rank 0, and "gradients" in that)"));
  }
}

/// A disk that is full where the first writes ends nobody's run, and nobody waits for it.
void goes_on_where_no_state_can_be_saved(ShardOf shard) {
  const fs::path folder = folder_of("unsaved_" + std::string(word(shard)));
  const auto ended = outcomes_of(2, [&](const parallel::Launched& launched) {
    Config config = six_steps(folder);
    config.model.width = 96;
    config.parallel.shard = shard;
    config.state.every = 1;
    fs::create_directories(folder / "team");
    if (launched.rank == 0) write_text(folder / "team" / "state", "no folder");
    (void)run_in(config, folder / "team", Team(parallel::World::meet(launched)));
  });
  if (testing::is_started_by_test()) return;
  EXPECT_EQ(ended[1].exit_code, 0) << ended[1].output;
  EXPECT_NE(ended[0].exit_code, 0);
  EXPECT_THAT(ended[0].output, HasSubstr("saving training state"));
  EXPECT_EQ(lines_of(folder / "team").size(), kSixSteps);
}

TEST(Team, GoesOnWhereAStateInShardsCannotBeSaved) {
  goes_on_where_no_state_can_be_saved(ShardOf::Gradients);
  goes_on_where_no_state_can_be_saved(ShardOf::Parameters);
}

}  // namespace
}  // namespace snug::train
