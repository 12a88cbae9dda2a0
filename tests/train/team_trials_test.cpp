// Runs of several processes in random layouts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "snug/train/trainer.h"
#include "tests/parallel/processes.h"
#include "tests/train/team_run.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;
using memory::Tier;
using testing::Ended;
using testing::folder_of;
using testing::outcomes_of;
using testing::run_in;
using testing::six_steps;

/// Where a stage does not fit it says so, and all others that another one does not; else all have trained.
bool were_refused(const std::vector<Ended>& ended, const std::string& what) {
  const bool refused = std::ranges::any_of(ended, [](const Ended& one) { return one.exit_code == 12; });
  for (const Ended& one : ended) {
    EXPECT_EQ(one.signal, 0) << what << "\n" << one.output;
    EXPECT_TRUE(refused ? one.exit_code == 11 || one.exit_code == 12 : one.exit_code == 0) << what << "\n"
                                                                                           << one.output;
    if (one.exit_code == 12) {
      EXPECT_NE(one.output.find("does not fit"), std::string::npos) << what << "\n" << one.output;
    }
  }
  return refused;
}

/// Any layout and budget: the cap holds in each, or all are refused, and none hangs.
TEST(Team, HoldsItsCapOrIsRefusedWhateverIsAskedFor) {
  const char* const asked = std::getenv("SNUG_TRIALS");
  const int trials = asked != nullptr ? std::atoi(asked) : 4;
  const fs::path folder = folder_of("any_layout");
  std::mt19937 random(13);  // NOLINT: the same each time
  const auto one_of = [&](auto... choices) {
    const std::array all{choices...};
    return all.at(random() % all.size());
  };
  int trained = 0;
  for (int i = 0; i < trials; ++i) {
    Config config = six_steps(folder, one_of(0.0, 0.1));
    const auto& [processes, layout] =
        one_of(std::pair{2, TeamLayout{}}, std::pair{3, TeamLayout{}}, std::pair{4, TeamLayout{}},
               std::pair{2, TeamLayout{.tensor = 2}},
               std::pair{4, TeamLayout{.tensor = 2, .between = models::Between::Sequences}},
               std::pair{3, TeamLayout{.tensor = 3}},
               std::pair{2, TeamLayout{.tensor = 2, .between = models::Between::KeptInParts}},
               std::pair{2, TeamLayout{.context = 2}},
               std::pair{4, TeamLayout{.context = 2, .context_by = models::ContextMethod::Ring}},
               std::pair{2, TeamLayout{.pipeline = 2}}, std::pair{4, TeamLayout{.pipeline = 2}},
               std::pair{4, TeamLayout{.tensor = 2, .pipeline = 2}}, std::pair{3, TeamLayout{.pipeline = 3}});
    config.parallel.tensor = layout.tensor;
    config.parallel.context = layout.context;
    config.parallel.context_by = layout.context_by;
    config.parallel.pipeline = layout.pipeline;
    config.parallel.sequence_parallel = layout.between == models::Between::Sequences;
    config.parallel.partition_activations = layout.between == models::Between::KeptInParts;
    config.model.blocks = layout.pipeline > 1 ? one_of(3, 5) : one_of(1, 2, 5);
    config.model.width = one_of(48, 96, 192);
    config.model.heads = 12;
    config.train.accumulate = one_of(1, 2);
    config.train.batch = processes / layout.per_replica() * config.train.accumulate * one_of(1, 4);
    config.model.sequence = one_of(64, 128);
    config.train.steps = 3;
    config.optimizer.kind = layout.tensor > 1 ? one_of("adamw", "sgd") : one_of("adamw", "adamw_8bit", "sgd");
    config.precision.compute = one_of(Compute::Fp32, Compute::Bf16);
    config.parallel.shard = one_of(ShardOf::None, ShardOf::Optimizer, ShardOf::Gradients, ShardOf::Parameters);
    if (layout.pipeline > 1 && config.parallel.shard == ShardOf::Parameters) config.parallel.shard = ShardOf::Gradients;
    if (config.parallel.shard != ShardOf::None && processes == 4 && layout.per_replica() == 1)
      config.parallel.shard_degree = one_of(0, 2);
    const int percent = one_of(75, 85, 95, 100);
    config.memory.budget = plan::parse_budget(std::to_string(percent) + "%");
    config.state.every = 0;
    Config streamed = config;  // what is streamed has its budget in bytes: of the peak without
    const Tier tier = one_of(Tier::Host, Tier::Disk);
    (tier == Tier::Host ? streamed.memory.host_budget : streamed.memory.disk_budget) = plan::BudgetRequest(1_GiB);
    KeptIn& kept = config.parallel.shard == ShardOf::Parameters ? streamed.memory.weights : streamed.memory.optimizer;
    const bool may = config.optimizer.kind != "sgd" && layout.pipeline == 1;
    kept = may ? one_of(KeptIn::Device, KeptIn::Streamed) : KeptIn::Device;
    const bool streams = kept == KeptIn::Streamed;
    if (streams) config.model.width = streamed.model.width = 192;  // smaller weights stay where they are
    const std::string what =
        fmt::format("trial {}: {} processes\n{}", i, processes, to_json(streams ? streamed : config).dump());
    const auto ended = outcomes_of(processes, [&](const parallel::Launched& launched) {
      const Team team(parallel::World::meet(launched), layout_of(config.parallel));
      Config now = config;
      if (streams) {
        now.memory.budget.reset();
        now.state = {};
        now.train.steps = 1;
        double most = 0;
        for (const double peak : team.gather({static_cast<double>(run_in(now, {}, team).memory.allocated_peak)}))
          most = std::max(most, peak);
        now = streamed;
        const Bytes share = static_cast<Bytes>(most) * percent / 100;
        now.memory.budget = plan::BudgetRequest(share + plan::Budget::for_limit(share).reserve);
      }
      const TrainResult result = run_in(now, folder / std::to_string(i), team);
      EXPECT_LE(result.memory.allocated_peak, result.plan.budget);
      EXPECT_EQ(result.steps, 3);
    });
    trained += were_refused(ended, what) ? 0 : 1;
  }
  EXPECT_TRUE(2 * trained > trials || testing::is_started_by_test()) << trained << " of " << trials;
}

}  // namespace
}  // namespace snug::train
