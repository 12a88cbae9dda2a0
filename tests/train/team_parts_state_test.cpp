// What runs in parts leave: their state, for any layout, and what was trained; and what is refused.
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
#include "snug/train/experiment.h"
#include "snug/train/saved_model.h"
#include "snug/train/trainer.h"
#include "tests/parallel/processes.h"
#include "tests/train/parts_run.h"
#include "tests/train/team_run.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;
using testing::config_of;
using testing::Ended;
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

/// A state is that of one process: other layouts go on with it, and the same one to the bit.
TEST(TeamInParts, GoesOnInAnyLayout) {
  const fs::path folder = folder_of("other_parts");
  const InParts two{.processes = 2, .tensor = 2, .sequences = true};
  in_processes(2, [&](parallel::World& world) { (void)run_parts(config_of(folder, two, 0.1), folder / "two", world); });
  const std::vector<InParts> others = {
      two,
      {.processes = 1},
      {.processes = 4, .tensor = 2, .shard = ShardOf::Gradients},
      {.processes = 2, .context = 2},
  };
  for (std::size_t i = 0; i < others.size(); ++i) {
    const fs::path here = folder / std::to_string(i);
    if (!testing::is_started_by_test()) {
      fs::copy(folder / "two", here, fs::copy_options::recursive);
      fs::remove_all(here / "state" / state::state_name(kSixSteps));
    }
    const int processes = others[i].processes;
    const Config config = config_of(folder, others[i], 0.1);
    if (processes == 1) {
      if (testing::is_started_by_test()) continue;
      EXPECT_EQ(run_in(config, here, Team(), Start::Resume).resumed_from, 3);
    } else {
      in_processes(processes, [&](parallel::World& world) {
        EXPECT_EQ(run_parts(config, here, world, Start::Resume).resumed_from, 3);
      });
    }
    if (testing::is_started_by_test()) continue;
    if (i == 0) {
      EXPECT_EQ(lines_of(here), lines_of(folder / "two"));
      EXPECT_TRUE(optimizer_after(here, kSixSteps) == optimizer_after(folder / "two", kSixSteps));
    }
    // Of other random numbers: close to what it was, and not worse.
    EXPECT_NEAR(lines_of(here).at(5)[0].get<double>(), lines_of(folder / "two").at(5)[0].get<double>(), 0.1) << i;
  }
}

/// What is saved by stages has as many micro-batches in all as what goes on with it.
TEST(TeamInParts, GoesOnFromStages) {
  const fs::path folder = folder_of("from_stages");
  const Config of_stages = config_of(folder, {.processes = 2, .pipeline = 2});  // 4 micro-batches
  in_processes(2, [&](parallel::World& world) { (void)run_parts(of_stages, folder / "stages", world); });
  const std::vector<std::pair<InParts, std::int64_t>> others = {{{.processes = 1}, 4},
                                                                {{.processes = 2}, 2},
                                                                {{.processes = 4, .pipeline = 2}, 2},
                                                                {{.processes = 2, .pipeline = 2}, 4}};
  for (std::size_t i = 0; i < others.size(); ++i) {
    const fs::path here = folder / std::to_string(i);
    if (!testing::is_started_by_test()) {
      fs::copy(folder / "stages", here, fs::copy_options::recursive);
      fs::remove_all(here / "state" / state::state_name(kSixSteps));
    }
    Config config = of_stages;
    config.parallel.pipeline = others[i].first.pipeline;
    config.train.accumulate = others[i].second;
    if (others[i].first.processes == 1) {
      if (testing::is_started_by_test()) continue;
      EXPECT_EQ(run_in(config, here, Team(), Start::Resume).resumed_from, 3);
      config.train.accumulate = 8;
      EXPECT_THROW((void)run_in(config, here, Team(), Start::Resume), UsageError) << "other micro-batches";
    } else {
      in_processes(others[i].first.processes, [&](parallel::World& world) {
        EXPECT_EQ(run_parts(config, here, world, Start::Resume).resumed_from, 3);
      });
    }
    if (!testing::is_started_by_test()) expect_close(here, folder / "stages", std::to_string(i));
  }
}

/// Of a model in files, which say what it is.
Config finetuning(const fs::path& folder, const fs::path& model, const InParts& parts) {
  Config config = config_of(folder, parts);
  const std::int64_t sequence = config.model.sequence;
  config.model = {};
  config.model.kind = parts.kind;
  config.model.path = model;
  config.model.sequence = sequence;
  config.data.tokenizer = "bytes";
  return config;
}

/// What is saved behind a run is the whole model, or the whole adapter.
TEST(TeamInParts, SavesWhatOneProcessWould) {
  const fs::path folder = folder_of("saved_parts");
  if (!testing::is_started_by_test()) {
    Config base = config_of(folder, {.kind = "llama"});
    base.state = {};
    (void)save_trained(Experiment(base), folder / "base");
  }
  for (const std::int64_t rank : {0, 4}) {
    const auto finetuned = [&](const InParts& parts) {
      Config config = finetuning(folder, folder / "base" / "model", parts);
      config.lora.rank = rank;
      config.state = {};
      return config;
    };
    const auto train_and_save = [&](const Config& config, const Team& team, const fs::path& to) {
      report::Progress silent = report::Progress::silent();
      TrainOptions options;
      options.team = team;
      options.after = [&](Experiment& experiment, const TrainResult&) { (void)save_trained(experiment, to); };
      (void)train(config, silent, options);
    };
    const fs::path one = folder / fmt::format("one_{}", rank), two = folder / fmt::format("two_{}", rank);
    in_processes(2, [&](parallel::World& world) {
      const Config config = finetuned({.kind = "llama", .tensor = 2, .sequences = true});
      train_and_save(config, team_of(world, layout_of(config.parallel)), two);
    });
    if (testing::is_started_by_test()) continue;
    train_and_save(finetuned({.kind = "llama"}), Team(), one);
    const fs::path file = rank > 0 ? "adapter/adapter_model.safetensors" : "model/model.safetensors";
    const auto expected = state::open_safetensors(one / file).tensors,
               found = state::open_safetensors(two / file).tensors;
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, tensor] : expected) {
      const at::Tensor its = tensor.read(), mine = found.at(name).read();
      ASSERT_EQ(mine.sizes(), its.sizes()) << name;
      EXPECT_LE((mine - its).norm().item<double>(), 2e-3 * its.norm().item<double>() + 1e-6) << name;
    }
  }
}

/// Where nothing is shared by stages, they have the bits of one process that adds up the micro-batches: adapters do.
TEST(TeamInParts, OfStagesHasTheBitsOfAllItsMicroBatches) {
  const fs::path folder = folder_of("stages_bits");
  if (!testing::is_started_by_test()) {
    Config base = config_of(folder, {.kind = "llama", .processes = 2, .pipeline = 2});
    base.state = {}, base.parallel = {};
    (void)save_trained(Experiment(base), folder / "base");
  }
  std::string targets = "all-linear";
  const auto finetuned = [&](const InParts& parts) {
    Config config = finetuning(folder, folder / "base" / "model", parts);
    config.lora.rank = 4;
    config.lora.targets = targets;
    config.train.accumulate = 4;
    config.model.sequence = 128;
    return config;
  };
  for (const std::string schedule : {"1f1b", "interleaved(2)"}) {
    in_processes(2, [&](parallel::World& world) {
      const Config config = finetuned({.kind = "llama", .processes = 2, .pipeline = 2, .schedule = schedule});
      const TrainResult free = run_parts(config, folder / schedule, world);
      Config within = config;
      within.memory.budget = plan::parse_budget("75%");
      const TrainResult result = run_parts(within, folder / (schedule + "_planned"), world);
      EXPECT_GT(result.replayed_ops, 0);
      EXPECT_EQ(result.evictions, 0);
      EXPECT_LE(result.memory.allocated_peak, result.plan.budget);
      EXPECT_LT(result.memory.allocated_peak, free.memory.allocated_peak);
    });
  }
  // The first stage has nothing that trains.
  targets = "layers.3.self_attn.q_proj";
  in_processes(2, [&](parallel::World& world) {
    (void)run_parts(finetuned({.kind = "llama", .processes = 2, .pipeline = 2}), folder / "late", world);
  });
  if (testing::is_started_by_test()) return;
  (void)run_in(finetuned({.kind = "llama"}), folder / "late_one", Team());
  EXPECT_EQ(lines_of(folder / "late"), lines_of(folder / "late_one"));
  EXPECT_TRUE(weights_after(folder / "late", kSixSteps) == weights_after(folder / "late_one", kSixSteps));
  targets = "all-linear";
  (void)run_in(finetuned({.kind = "llama"}), folder / "one", Team());
  for (const char* const other : {"1f1b", "1f1b_planned", "interleaved(2)", "interleaved(2)_planned"}) {
    EXPECT_EQ(lines_of(folder / other), lines_of(folder / "one")) << other;
    EXPECT_TRUE(weights_after(folder / other, kSixSteps) == weights_after(folder / "one", kSixSteps)) << other;
    EXPECT_TRUE(optimizer_after(folder / other, kSixSteps) == optimizer_after(folder / "one", kSixSteps)) << other;
  }
}

/// Weights in blocks of a GGUF file, which stages that others have leave (QLoRA).
TEST(TeamInParts, OfStagesHasTheBitsWithPackedWeights) {
  const fs::path folder = folder_of("packed_stages");
  const auto packed = [&](const InParts& parts) {
    Config config = finetuning(folder, fs::path(SNUG_TESTS) / "train" / "tiny.gguf", parts);
    config.model.weights = BaseWeights::Packed;
    config.model.sequence = 64;
    config.lora.rank = 4;
    config.lora.targets = "all-linear";
    config.train.accumulate = 2;
    return config;
  };
  in_processes(2, [&](parallel::World& world) {
    const TrainResult result =
        run_parts(packed({.kind = "llama", .processes = 2, .pipeline = 2}), folder / "stages", world);
    EXPECT_EQ(result.steps, kSixSteps);
  });
  if (testing::is_started_by_test()) return;
  (void)run_in(packed({.kind = "llama"}), folder / "one", Team());
  EXPECT_EQ(lines_of(folder / "stages"), lines_of(folder / "one"));
  EXPECT_TRUE(weights_after(folder / "stages", kSixSteps) == weights_after(folder / "one", kSixSteps));
}

/// In each of so many processes.
std::string refused(int processes, const InParts& parts, const std::function<void(Config&)>& also = {}) {
  const fs::path folder = folder_of("refused_parts");
  const auto ended = outcomes_of(processes, [&](const parallel::Launched& launched) {
    Config config = config_of(folder, parts);
    if (also) also(config);
    (void)run_in(config, folder / "team", Team(parallel::World::meet(launched), layout_of(config.parallel)));
  });
  for (const Ended& one : ended) EXPECT_EQ(one.exit_code, 12) << one.output;
  return ended.empty() ? "" : ended.front().output;
}

TEST(TeamInParts, IsRefusedInAllWhereItCannotBe) {
  EXPECT_THAT(refused(3, {.tensor = 2}), HasSubstr("3 processes, and parallel.tensor = 2; start a multiple of 2"));
  EXPECT_THAT(refused(2, {.tensor = 2}, [](Config& c) { c.model.heads = 1; }), HasSubstr("of 1 heads"));
  EXPECT_THAT(refused(2, {.tensor = 2}, [](Config& c) { c.optimizer.kind = "adamw_8bit"; }),
              HasSubstr("parallel.tensor = 2 with optimizer.kind = \"adamw_8bit\""));
  EXPECT_THAT(refused(2, {.context = 2}, [](Config& c) { c.model.sequence = 33; }), HasSubstr("set it to a multiple"));
}

/// One of two that wait for each other in every layer: the other one does not wait for the timeout.
TEST(TeamInParts, EndsAtOnceWhereOneHasTooLittle) {
  const fs::path folder = folder_of("too_little_in_parts");
  for (const int poor : {0, 1}) {
    const auto began = std::chrono::steady_clock::now();
    const auto ended = outcomes_of(2, [&](const parallel::Launched& launched) {
      Config config = config_of(folder, {.tensor = 2});
      config.memory.budget = launched.rank == poor ? 3_MiB : 64_MiB;
      (void)run_in(config, folder / "team", Team(parallel::World::meet(launched), layout_of(config.parallel)));
    });
    if (testing::is_started_by_test()) continue;
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30));
    EXPECT_THAT(ended[static_cast<std::size_t>(poor)].output, HasSubstr("does not fit"));
    EXPECT_NE(ended[static_cast<std::size_t>(1 - poor)].exit_code, 0);
    EXPECT_EQ(ended[static_cast<std::size_t>(1 - poor)].signal, 0);
  }
}

TEST(TeamInParts, IsRefusedWhereProcessesHaveOtherLayouts) {
  const fs::path folder = folder_of("unlike_parts");
  const auto ended = outcomes_of(2, [&](const parallel::Launched& launched) {
    const Config config = config_of(folder, {.tensor = 1 + launched.rank});
    (void)run_in(config, folder / "team", Team(parallel::World::meet(launched), layout_of(config.parallel)));
  });
  for (const Ended& one : ended) {
    EXPECT_EQ(one.exit_code, 12) << one.output;
    EXPECT_THAT(one.output, HasSubstr("parallel.tensor is 1 in the process of rank 0, and 2 in that of rank 1"));
  }
}

TEST(TeamInParts, IsRefusedAlone) {
  Config config;
  config.parallel.tensor = 2;
  EXPECT_NO_THROW(validate(config));
  config.parallel.context = 2;
  EXPECT_THROW(validate(config), UsageError) << "both";
  config.parallel.context = 1;
  try {
    (void)Team::of_launcher(config);
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("parallel.tensor = 2, and this process is alone"));
  }
}

}  // namespace
}  // namespace snug::train
