// Runs of several processes, beside that of one which does all of their work in their order.
#include "snug/train/team.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <string_view>

#include "snug/base/errors.h"
#include "snug/base/text_file.h"
#include "snug/report/progress.h"
#include "snug/state/training_state.h"
#include "snug/train/experiment.h"
#include "snug/train/interrupt.h"
#include "snug/train/parallel_rules.h"
#include "snug/train/trainer.h"
#include "tests/base/scratch.h"
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
using testing::outcomes_of;
using testing::run_in;
using testing::six_steps;
using testing::team_of;
using testing::weights_after;

TEST(Team, OfTwoHasTheBitsOfOneProcessWithTwoMicroBatches) {
  is_one_process_with_as_many_micro_batches(2, "two", six_steps(folder_of("two")));
}
TEST(Team, OfFourHasTheBitsOfOneProcessWithFourMicroBatches) {
  is_one_process_with_as_many_micro_batches(4, "four", six_steps(folder_of("four")));
}

/// A run of two that is resumed draws what it would have drawn: in each process other numbers.
TEST(Team, GoesOnBitwiseWithDropout) {
  const fs::path folder = folder_of("resumed");
  const Config config = six_steps(folder, 0.2);
  in_processes(2, [&](parallel::World& world) {
    const Team team = team_of(world);
    Config half = config;
    EXPECT_EQ(run_in(config, folder / "whole", team).steps, kSixSteps);
    if (team.is_first()) {
      fs::create_directories(folder / "half");
      fs::copy(folder / "whole" / "state", folder / "half" / "state", fs::copy_options::recursive);
      fs::remove_all(folder / "half" / "state" / state::state_name(kSixSteps));
    }
    world.all()->run(parallel::Barrier{});
    const TrainResult result = run_in(half, folder / "half", team, Start::Resume);
    EXPECT_EQ(result.resumed_from, 3);
  });
  EXPECT_TRUE(weights_after(folder / "whole", kSixSteps) == weights_after(folder / "half", kSixSteps));
  const auto values = [&](const char* run) {
    return nlohmann::json::parse(read_text(folder / run / "state" / state::state_name(kSixSteps) / "values.json"));
  };
  const nlohmann::json random = values("whole")["random_of_team"];
  ASSERT_EQ(random.size(), 2U);
  EXPECT_NE(random[0], random[1]);
  EXPECT_EQ(random, values("half")["random_of_team"]);
  // One process goes on from it alone, and two from what one has left.
  Config alone = config;
  alone.train.steps = kSixSteps + 1;
  EXPECT_EQ(run_in(alone, folder / "half", Team(), Start::Resume).resumed_from, kSixSteps);
}

TEST(Team, GoesOnFromWhatOneProcessHasLeft) {
  const fs::path folder = folder_of("grown");
  Config config = six_steps(folder, 0.2);
  if (!testing::is_started_by_test()) {
    config.train.steps = 3;
    (void)run_in(config, folder / "run", Team());
  }
  config.train.steps = kSixSteps;
  in_processes(2, [&](parallel::World& world) {
    const TrainResult result = run_in(config, folder / "run", team_of(world), Start::Resume);
    EXPECT_EQ(result.resumed_from, 3);
    EXPECT_EQ(result.steps, kSixSteps);
  });
  EXPECT_EQ(lines_of(folder / "run").size(), kSixSteps);
}

/// One of two processes gets `signal` in its third step.
void third_step_with(int signal, ShardOf shard, const std::string& name) {
  const fs::path folder = folder_of(name);
  Config config = six_steps(folder);
  config.parallel.shard = shard;
  in_processes(2, [&](parallel::World& world) {
    const InterruptScope interruptible;
    Config long_run = config;
    if (signal == SIGTERM) long_run.train.steps = 1000;
    long_run.state.every = 0;
    long_run.train.validate_every = 0;
    long_run.output.folder = folder / "team";
    TrainOptions options;
    options.team = team_of(world);
    int passes = 0;
    options.before = [&](Experiment& experiment) {
      if (world.all()->rank() == 0) return;
      experiment.model().parameters().front().register_hook([&](const at::Tensor&) {
        if (++passes == 5) std::raise(signal);  // two of them are recordings
      });
    };
    report::Progress silent = report::Progress::silent();
    const TrainResult result = train(long_run, silent, options);
    EXPECT_EQ(result.interrupted, signal == SIGTERM);
    EXPECT_EQ(result.steps, signal == SIGTERM ? 3 : kSixSteps);
    if (world.all()->rank() == 0) {
      EXPECT_EQ(result.states_saved, signal == SIGTERM ? 1 : 2);
    }
  });
  EXPECT_FALSE(weights_after(folder / "team", 3).empty());
}

TEST(Team, StopsTogetherWhenOneIsAskedTo) { third_step_with(SIGTERM, ShardOf::None, "stopped"); }
TEST(Team, InShardsStopsTogetherAndSaves) { third_step_with(SIGTERM, ShardOf::Gradients, "stopped_in_shards"); }
TEST(Team, SavesTogetherWhenOneIsAskedTo) { third_step_with(SIGUSR1, ShardOf::None, "saved"); }
TEST(Team, InShardsSavesTogetherWhenOneIsAskedTo) { third_step_with(SIGUSR1, ShardOf::Gradients, "saved_in_shards"); }

/// All say the same of a batch of which one of them has nothing.
TEST(Team, RefusesAPartWithoutTargets) {
  in_processes(2, [](parallel::World& world) {
    const Team team = team_of(world);
    data::Batch batch;
    batch.input = torch::arange(32).view({4, 8});
    batch.target = batch.input.clone();
    batch.target.slice(0, 0, 1).slice(1, 0, 4).fill_(data::kNoTarget);
    const auto parts = team.part_of(batch, 2);
    ASSERT_EQ(parts.size(), 2U);
    EXPECT_EQ(parts[0].share, team.is_first() ? 4.0 / 28 : 8.0 / 28);
    EXPECT_TRUE(at::equal(parts[1].batch.input, batch.input.slice(0, team.rank() + 2, team.rank() + 3)));
    batch.target.slice(0, 3, 4).fill_(data::kNoTarget);
    EXPECT_THROW((void)team.part_of(batch, 2), UsageError);
    EXPECT_EQ(team.part_of(batch, 1).size(), 1U);
  });
}

TEST(Team, RefusesProcessesThatAreNotAlike) {
  const fs::path folder = folder_of("unlike");
  in_processes(2, [&](parallel::World& world) {
    const Team team = team_of(world);
    const auto refusal = [&](const auto& change, std::int64_t done = 0,
                             c10::DeviceType device = c10::kCPU) -> std::string {
      Config config = six_steps(folder);
      if (!team.is_first()) change(config);
      try {
        check_same_settings(config, team);
        check_same_in_team(team, config.data.path, done, device);
      } catch (const UsageError& error) {
        return error.what();
      }
      return "taken";
    };
    EXPECT_EQ(refusal([](Config&) {}), "taken");
    EXPECT_EQ(refusal([](Config& c) { c.memory.budget = plan::parse_budget("70%"); }), "taken");
    EXPECT_THAT(refusal([](Config& c) { c.optimizer.learning_rate = 1; }),
                HasSubstr("optimizer.learning_rate is 0.0003 in the process of rank 0, and 1.0 in that of rank 1"));
    EXPECT_THAT(refusal([](Config& c) { c.precision.compute = Compute::Bf16; }), HasSubstr("precision.compute is"));
    EXPECT_THAT(refusal([](Config& c) { c.data.path += "x"; }), HasSubstr("data.path is"));
    // All take part in saving, wherever each has its folder.
    EXPECT_THAT(refusal([](Config& c) { c.state.every = 7; }), HasSubstr("state.every is 3 in the process of rank 0"));
    EXPECT_THAT(refusal([](Config& c) { c.output.folder = "x"; }), HasSubstr("output.folder is false in the process"));
    EXPECT_THAT(refusal([](Config&) {}, team.rank()), HasSubstr("other steps"));
    at::set_num_threads(1 + team.rank());
    EXPECT_THAT(refusal([](Config&) {}), HasSubstr("train.threads"));
    EXPECT_EQ(refusal([](Config&) {}, 0, c10::kCUDA), "taken") << "the CPU's threads change no bit there";
  });
}

TEST(Team, RefusesWhatItCannotDo) {
  const fs::path folder = folder_of("refused");
  in_processes(2, [&](parallel::World& world) {
    const Team team = team_of(world);
    const auto refusal = [&](const auto& change) -> std::string {
      Config config = six_steps(folder);
      change(config);
      try {
        check_for_team(config, team);
      } catch (const UsageError& error) {
        return error.what();
      }
      return "taken";
    };
    EXPECT_EQ(refusal([](Config&) {}), "taken");
    EXPECT_THAT(refusal([](Config& c) { c.train.batch = 5; }), HasSubstr("train.batch = 5 and 2 processes"));
    EXPECT_THAT(refusal([](Config& c) { c.train.accumulate = 8; }), HasSubstr("a multiple of 16"));
    EXPECT_THAT(refusal([](Config& c) { c.optimizer.in_backward = true; }), HasSubstr("in_backward"));
    EXPECT_THAT(refusal([](Config& c) { c.memory.weights = KeptIn::Streamed; }),
                HasSubstr("set parallel.shard = \"parameters\""));
    EXPECT_EQ(refusal([](Config& c) {
                c.memory.weights = KeptIn::Streamed;
                c.parallel.shard = ShardOf::Parameters;
              }),
              "taken");
    EXPECT_THAT(refusal([](Config& c) {
                  c.memory.optimizer = KeptIn::Streamed;
                  c.parallel.pipeline = 2;
                }),
                HasSubstr("parallel.pipeline = 2 with memory.optimizer = \"streamed\""));
    EXPECT_THAT(refusal([](Config& c) { c.memory.allow = "micro_batch"; }), HasSubstr("memory.allow"));
    EXPECT_EQ(refusal([](Config& c) { c.train.device = "cuda"; }), "taken");
    EXPECT_THAT(refusal([](Config& c) {
                  c.parallel.shard = ShardOf::Optimizer;
                  c.optimizer.kind = "muon";
                }),
                HasSubstr("parallel.shard = \"optimizer\" with optimizer.kind = \"muon\""));
  });
}

TEST(Team, TrainsWhereOneAloneHasABudget) {
  const fs::path folder = folder_of("one_budget");
  in_processes(2, [&](parallel::World& world) {
    Config config = six_steps(folder);
    if (world.all()->rank() == 0) config.memory.budget = plan::parse_budget("90%");
    EXPECT_EQ(run_in(config, folder / "team", team_of(world)).steps, kSixSteps);
  });
}

/// What does not fit in one of them is refused in all, and none hangs.
TEST(Team, IsRefusedTogether) {
  const fs::path folder = folder_of("too_small");
  const auto ended = outcomes_of(2, [&](const parallel::Launched& launched) {
    Config config = six_steps(folder);
    config.memory.budget = plan::parse_budget(launched.rank == 0 ? "30%" : "100%");
    (void)run_in(config, folder / "team", Team(parallel::World::meet(launched)));
  });
  EXPECT_EQ(ended[0].exit_code, 12) << ended[0].output;  // wrong use
  EXPECT_EQ(ended[1].exit_code, 11) << ended[1].output;
  EXPECT_THAT(ended[0].output, HasSubstr("does not fit"));
  EXPECT_THAT(ended[1].output, HasSubstr("another process"));
}

}  // namespace
}  // namespace snug::train
