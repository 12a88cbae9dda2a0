// Runs of several processes of which groups have all of it in shards each (hybrid shard).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <string>

#include "snug/base/errors.h"
#include "snug/train/config.h"
#include "snug/train/experiment.h"
#include "snug/train/trainer.h"
#include "tests/parallel/processes.h"
#include "tests/train/parts_run.h"
#include "tests/train/team_run.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::folder_of;
using ::testing::HasSubstr;
using testing::in_processes;
using testing::kSixSteps;
using testing::optimizer_after;
using testing::outcomes_of;
using testing::run_in;
using testing::six_steps;
using testing::team_of;
using testing::weights_after;

/// Pairs have all of it in shards each: a half of what the optimizer keeps, and of weights, and not a quarter. Which
/// replica has which part changes no bit, and a run goes on where all have parts.
TEST(Team, SharesInPairsWhatPairsHaveTwice) {
  const fs::path folder = folder_of("hybrid");
  const auto config_of = [&](std::int64_t degree, std::int64_t steps) {
    Config config = six_steps(folder);
    config.model.width = 96;
    config.parallel.shard = ShardOf::Parameters;
    config.parallel.shard_degree = degree;
    config.train.steps = steps;
    config.train.validate_every = 0;
    config.optimizer.schedule = LearningRate::Constant;
    return config;
  };
  in_processes(4, [&](parallel::World& world) {
    const auto team = [&](const Config& config) { return team_of(world, layout_of(config.parallel)); };
    std::map<std::int64_t, std::int64_t> kept, weights;
    double elements = 0;
    for (const std::int64_t degree : {0, 2}) {
      Config config = config_of(degree, kSixSteps);
      config.state = {};
      Experiment experiment(config, team(config));
      for (const at::Tensor& tensor : experiment.optimizer().state()) kept[degree] += tensor.numel();
      for (const auto& [parameter, shard] : experiment.divided()) weights[degree] += shard.numel();
      elements = static_cast<double>(experiment.elements().trained);
    }
    EXPECT_NEAR(static_cast<double>(kept[2]) / elements, 1, 0.01) << "a half of two moments";
    EXPECT_NEAR(static_cast<double>(kept[0]) / elements, 0.5, 0.01);
    EXPECT_NEAR(static_cast<double>(weights[2]) / static_cast<double>(weights[0]), 2, 0.01);
    const Config pairs = config_of(2, kSixSteps), begun = config_of(2, 3), other = config_of(0, kSixSteps);
    (void)run_in(pairs, folder / "pairs", team(pairs));
    (void)run_in(begun, folder / "resumed", team(begun));
    EXPECT_EQ(run_in(pairs, folder / "resumed", team(pairs), Start::Resume).resumed_from, 3);
    (void)run_in(begun, folder / "other", team(begun));
    EXPECT_EQ(run_in(other, folder / "other", team(other), Start::Resume).resumed_from, 3);
  });
  EXPECT_TRUE(weights_after(folder / "resumed", kSixSteps) == weights_after(folder / "pairs", kSixSteps));
  EXPECT_TRUE(optimizer_after(folder / "resumed", kSixSteps) == optimizer_after(folder / "pairs", kSixSteps));
  testing::expect_close(folder / "other", folder / "resumed", "sums of pairs, or of all");
}

TEST(Team, RefusesPairsOfThree) {
  const fs::path folder = folder_of("hybrid_refused");
  for (const Ended& one : outcomes_of(3, [&](const parallel::Launched& launched) {
         Config config = six_steps(folder);
         config.parallel.shard = ShardOf::Optimizer;
         config.parallel.shard_degree = 2;
         (void)run_in(config, folder / "team", Team(parallel::World::meet(launched), layout_of(config.parallel)));
       })) {
    if (testing::is_started_by_test()) continue;
    EXPECT_EQ(one.exit_code, 12) << one.output;
    EXPECT_THAT(one.output, HasSubstr("parallel.shard_degree = 2, and 3 replicas of the model"));
  }
}

TEST(Team, RefusesSettingsOfPartsThatDoNothing) {
  const auto refusal = [](const auto& change) -> std::string {
    Config config = six_steps(folder_of("hybrid_settings"));
    config.state = {};
    change(config);
    try {
      validate(config);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "taken";
  };
  const auto ring = [](Config& c) {
    c.parallel.context = 2;
    c.parallel.context_by = models::ContextMethod::Ring;
  };
  EXPECT_THAT(refusal([](Config& c) {
                c.parallel.shard = ShardOf::Gradients;
                c.parallel.shard_degree = 1;
              }),
              HasSubstr("parallel.shard_degree = 1 leaves each replica all"));
  EXPECT_EQ(refusal([&](Config& c) {
              ring(c);
              c.parallel.shard = ShardOf::Gradients;
              c.parallel.shard_degree = 1;
            }),
            "taken");
  EXPECT_THAT(refusal([&](Config& c) {
                ring(c);
                c.model.sequence = 66;
              }),
              HasSubstr("which twice parallel.context = 4 cannot divide evenly"));
  EXPECT_THAT(refusal([&](Config& c) {
                ring(c);
                c.model.kind = "gpt2";
                c.model.own.set("dropout", 0.1);
              }),
              HasSubstr("set model.dropout to 0, or parallel.context_by to \"heads\""));
  EXPECT_THAT(refusal([&](Config& c) {
                ring(c);
                c.train.device = "cuda";
              }),
              HasSubstr("a ring's attention runs on the CPU alone"));
  EXPECT_THAT(refusal([&](Config& c) {
                ring(c);
                set_key(c, "model.attention=products");
              }),
              HasSubstr("not in fp16 or a ring"));
}

}  // namespace
}  // namespace snug::train
