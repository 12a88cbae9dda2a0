// Runs of several processes with packed weights in shards (QLoRA).
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <string>

#include "snug/models/weights.h"
#include "snug/train/experiment.h"
#include "snug/train/trainer.h"
#include "tests/parallel/processes.h"
#include "tests/train/packed_file.h"
#include "tests/train/team_run.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;
using testing::folder_of;
using testing::in_processes;
using testing::is_one_process_with_as_many_micro_batches;
using testing::kSixSteps;
using testing::lines_of;
using testing::run_in;
using testing::six_steps;
using testing::team_of;
using testing::weights_after;

/// Frozen blocks of a GGUF file, of which each process has a part (QLoRA), beside adapters that are too small for that.
Config packed_in_shards(const std::string& name) {
  Config config = six_steps(folder_of(name));
  config.parallel.shard = ShardOf::Parameters;
  config.model = {};
  config.model.kind = "llama";
  config.model.path = folder_of(name) / "packed.gguf";
  config.model.weights = BaseWeights::Packed;
  config.model.sequence = 64;
  config.lora.rank = 4;
  config.lora.targets = "all-linear";
  config.data.tokenizer = "bytes";
  if (!testing::is_started_by_test()) testing::write_packed_llama(config.model.path, {.key_heads = 4});
  return config;
}
TEST(Team, WithPackedWeightsInShardsHasTheBitsOfAllItsMicroBatches) {
  is_one_process_with_as_many_micro_batches(2, "zero3_packed", packed_in_shards("zero3_packed"), 2, "95%");
}
TEST(Team, OfFourWithPackedWeightsInShardsHasTheSameBits) {
  is_one_process_with_as_many_micro_batches(4, "zero3_packed_four", packed_in_shards("zero3_packed_four"));
}
TEST(Team, TakesLessMemoryWithPackedWeightsInShards) {
  const Config config = packed_in_shards("zero3_packed_memory");
  const fs::path folder = fs::path(config.data.path).parent_path();
  in_processes(2, [&](parallel::World& world) {
    Config whole = config;
    whole.parallel.shard = ShardOf::Gradients;
    const Bytes peak = run_in(whole, folder / "whole", team_of(world)).memory.allocated_peak;
    Bytes packed = 0, divided = 0;
    {
      Config unsaved = config;
      unsaved.state = {};
      const Experiment experiment(unsaved, team_of(world));
      for (const at::Tensor& one : models::weights_of(experiment.model()))
        packed += one.scalar_type() == at::kByte ? static_cast<Bytes>(one.nbytes()) : 0;
      for (const auto& [parameter, shard] : experiment.divided()) divided += static_cast<Bytes>(shard.nbytes());
    }
    EXPECT_GT(packed, 1_MiB);
    EXPECT_NEAR(static_cast<double>(divided), static_cast<double>(packed) / 2, 4096) << "all matrices are large enough";
    Config within = config;
    within.memory.budget = peak - packed / 3;
    const TrainResult result = run_in(within, folder / "divided", team_of(world));
    EXPECT_LE(result.memory.allocated_peak, peak - packed / 3);
    EXPECT_EQ(result.steps, kSixSteps);
  });
  EXPECT_EQ(lines_of(folder / "divided"), lines_of(folder / "whole"));
  EXPECT_TRUE(weights_after(folder / "divided", kSixSteps) == weights_after(folder / "whole", kSixSteps));
}

}  // namespace
}  // namespace snug::train
