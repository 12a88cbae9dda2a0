#include "tests/train/parts_run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "snug/state/safetensors.h"
#include "snug/state/training_state.h"

namespace snug::testing {

namespace fs = std::filesystem;
using train::Config;
using train::Start;
using train::TrainResult;

Config config_of(const fs::path& folder, const InParts& parts, double dropout) {
  Config config = six_steps(folder, dropout);
  config.model.kind = parts.kind;
  config.model.width = 64;
  config.model.heads = 4;
  if (parts.kind == "llama") config.model.own.set("key_heads", std::int64_t{2});
  config.model.vocabulary = parts.vocabulary;
  config.parallel.tensor = parts.tensor;
  config.parallel.context = parts.context;
  config.parallel.context_by = parts.context_by;
  config.parallel.sequence_parallel = parts.sequences;
  config.parallel.partition_activations = parts.kept_in_parts;
  config.parallel.pipeline = parts.pipeline;
  config.parallel.schedule = parts.schedule;
  config.parallel.shard = parts.shard;
  config.parallel.shard_degree = parts.shard_degree;
  config.train.steps = parts.steps;
  config.state.every = parts.steps / 2;
  if (parts.pipeline > 1) {
    config.model.blocks = 4;
    config.model.sequence = 128;
    config.train.accumulate = parts.micro_batches / parts.replicas();
  }
  return config;
}

TrainResult run_parts(const Config& config, const fs::path& folder, parallel::World& world, Start start) {
  return run_in(config, folder, team_of(world, train::layout_of(config.parallel)), start);
}

/// Sums over parts are added up in another order than those of one process.
void expect_close(const fs::path& found, const fs::path& expected, const std::string& what, std::int64_t steps) {
  const Lines one = lines_of(expected), team = lines_of(found);
  ASSERT_EQ(team.size(), one.size()) << what;
  for (const auto& [step, numbers] : one) {
    ASSERT_EQ(team.at(step).size(), numbers.size()) << what;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto& number = team.at(step)[i];
      ASSERT_EQ(number.is_number(), numbers[i].is_number()) << what;
      if (!number.is_number()) continue;
      const auto expected_number = numbers[i].get<double>();
      EXPECT_NEAR(number.get<double>(), expected_number, 2e-5 * std::abs(expected_number)) << what << ", step " << step;
    }
  }
  const auto file = fs::path("state") / state::state_name(steps) / "weights.safetensors";
  const auto weights = state::open_safetensors(expected / file).tensors;
  const auto together = state::open_safetensors(found / file).tensors;
  ASSERT_EQ(together.size(), weights.size()) << what;
  double difference = 0, all = 0;
  for (const auto& [name, tensor] : weights) {
    const at::Tensor mine = together.at(name).read(), its = tensor.read();
    ASSERT_EQ(mine.sizes(), its.sizes()) << what << " " << name;
    difference += (mine - its).square().sum().item<double>();
    all += its.square().sum().item<double>();
  }
  EXPECT_LE(std::sqrt(difference / all), 1e-4) << what;
}

std::string name_of(const InParts& p) {
  return fmt::format("{}_{}_t{}_c{}{}_p{}_{}_{}_{}{}_v{}_m{}", p.kind, p.processes, p.tensor, p.context,
                     train::word(p.context_by), p.pipeline, p.schedule,
                     p.kept_in_parts ? "kept"
                     : p.sequences   ? "true"
                                     : "false",
                     train::word(p.shard), p.shard_degree, p.vocabulary, p.micro_batches);
}

}  // namespace snug::testing
