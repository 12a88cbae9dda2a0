#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "snug/train/config.h"
#include "tests/train/team_run.h"

namespace snug::testing {

struct InParts {
  std::string kind = "gpt";
  int processes = 2, tensor = 1, context = 1, pipeline = 1;
  bool sequences = false;
  bool kept_in_parts = false;  ///< activations: parallel.partition_activations
  train::ShardOf shard = train::ShardOf::None;
  std::int64_t shard_degree = 0;
  models::ContextMethod context_by = models::ContextMethod::Heads;
  std::string schedule = train::ParallelConfig().schedule;
  std::int64_t vocabulary = train::ModelConfig().vocabulary;
  int percent = 80;
  std::int64_t micro_batches = 4;  ///< of a pipeline's step, in all
  std::int64_t steps = kSixSteps;

  [[nodiscard]] int replicas() const { return processes / tensor / context / pipeline; }
};

/// Of a small decoder, as six_steps(), in so many parts.
train::Config config_of(const std::filesystem::path& folder, const InParts& parts, double dropout = 0);
std::string name_of(const InParts& parts);

train::TrainResult run_parts(const train::Config& config, const std::filesystem::path& folder, parallel::World& world,
                             train::Start start = train::Start::Anew);

/// Losses, norms and weights of a run of so many steps are those of another but for the order in which parts are added
/// up.
void expect_close(const std::filesystem::path& found, const std::filesystem::path& expected, const std::string& what,
                  std::int64_t steps = kSixSteps);

}  // namespace snug::testing
