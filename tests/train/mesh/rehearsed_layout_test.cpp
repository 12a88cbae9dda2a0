// What one process finds out about a run of several, beside that run.
#include "snug/train/mesh/rehearsed_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/plan/budget_request.h"
#include "tests/parallel/processes.h"
#include "tests/train/parts_run.h"
#include "tests/train/team_run.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;
using testing::config_of;
using testing::folder_of;
using testing::in_processes;
using testing::InParts;
using testing::name_of;
using testing::run_parts;
using testing::team_of;

constexpr parallel::Link kLink{.bytes_per_second = 2e9, .seconds_per_message = 50e-6};

Devices devices_of(int count) {
  return {.count = count, .links = {.within = kLink, .between = kLink, .per_machine = count}};
}

/// As commands are that train nothing to its end.
Config without_files(Config config) {
  config.state = {};
  config.output = {};
  return config;
}

/// Without a plan, to the byte, in each process; and that a plan made alone holds its peak.
TEST(RehearsedLayout, HasThePeaksOfTheRealRunToTheByte) {
  const std::vector<InParts> layouts = {
      {.kind = "gpt", .processes = 2, .shard = ShardOf::Parameters},
      {.kind = "gpt", .processes = 4, .tensor = 2, .shard = ShardOf::Optimizer, .vocabulary = 257},
      {.kind = "llama", .processes = 2, .context = 2},
      {.kind = "gpt", .processes = 2, .context = 2, .context_by = models::ContextMethod::Ring},
      {.kind = "llama", .processes = 4, .shard = ShardOf::Parameters, .shard_degree = 2},
      {.kind = "gpt2", .processes = 2, .pipeline = 2, .schedule = "interleaved(2)"},
      {.kind = "llama", .processes = 4, .tensor = 2, .pipeline = 2, .sequences = true},
      {.kind = "gpt", .processes = 4, .pipeline = 2, .shard = ShardOf::Gradients, .micro_batches = 8},
  };
  for (const InParts& parts : layouts) {
    const std::string name = name_of(parts);
    const fs::path folder = folder_of("rehearsed_" + name);
    in_processes(parts.processes, [&](parallel::World& world) {
      Config config = config_of(folder, parts, parts.kind == "llama" ? 0 : 0.1);
      config.state = {};  // whose copies would be there beside the steps
      const TrainResult real = run_parts(config, folder / "run", world);
      const std::vector<double> unplanned = team_of(world).gather({static_cast<double>(real.peaks.unplanned)}),
                                measured = team_of(world).gather({static_cast<double>(real.memory.allocated_peak)});
      if (world.all()->rank() > 0) return;
      const RehearsedLayout found = rehearse_layout(without_files(config), devices_of(parts.processes));
      ASSERT_EQ(found.processes.size(), static_cast<std::size_t>(parts.pipeline)) << name;
      const int of_stage = parts.tensor * parts.context;
      for (int place = 0; place < parts.pipeline; ++place) {
        const RehearsedProcess& one = found.processes[static_cast<std::size_t>(place)];
        // All replicas have the same stages.
        Bytes highest = 0, highest_measured = 0;
        for (int rank = 0; rank < parts.processes; ++rank) {
          if (rank / of_stage % parts.pipeline != place) continue;
          highest = std::max(highest, static_cast<Bytes>(unplanned[static_cast<std::size_t>(rank)]));
          highest_measured = std::max(highest_measured, static_cast<Bytes>(measured[static_cast<std::size_t>(rank)]));
        }
        EXPECT_EQ(one.unplanned_peak, highest) << name << ", stage " << place;
        EXPECT_EQ(one.measured_peak, highest_measured) << name << ", stage " << place;
        EXPECT_LT(one.floor, one.unplanned_peak) << name;
      }
      EXPECT_GT(found.seconds, 0) << name;
      EXPECT_EQ(found.idle > 0, parts.pipeline > 1) << name;
    });
  }
}

/// A plan that one process has made alone holds what that of all does.
TEST(RehearsedLayout, PlansAsTheRealRunDoes) {
  for (const InParts& parts : {InParts{.kind = "gpt", .processes = 2, .tensor = 2},
                               InParts{.kind = "gpt", .processes = 4, .tensor = 2, .pipeline = 2}}) {
    const std::string name = name_of(parts);
    const fs::path folder = folder_of("rehearsed_plan_" + name);
    in_processes(parts.processes, [&](parallel::World& world) {
      Config config = config_of(folder, parts);
      config.state = {};
      config.memory.budget = plan::Percent{85};
      const TrainResult real = run_parts(config, folder / "run", world);
      EXPECT_GT(real.replayed_ops, 0) << name;
      if (world.all()->rank() > 0) return;
      const RehearsedLayout found = rehearse_layout(without_files(config), devices_of(parts.processes));
      const RehearsedProcess& one = found.processes.front();
      EXPECT_EQ(one.unplanned_peak, real.peaks.unplanned) << name;
      EXPECT_LE(one.predicted_peak, real.plan.budget) << name;
      EXPECT_LE(one.measured_peak, one.predicted_peak) << name;
      // Plans are by times, which are each recording's own.
      EXPECT_NEAR(static_cast<double>(one.predicted_peak) / static_cast<double>(real.peaks.predicted), 1, 0.05) << name;
    });
  }
}

TEST(RehearsedLayout, TellsWhatIsTheLeast) {
  const fs::path folder = folder_of("rehearsed_within");
  const InParts parts{.kind = "gpt", .processes = 4, .tensor = 2, .pipeline = 2};
  Config config = without_files(config_of(folder, parts));
  const RehearsedLayout free = rehearse_layout(config, devices_of(4));
  ASSERT_EQ(free.processes.size(), 2U);
  EXPECT_EQ(free.processes[0].predicted_peak, free.processes[0].unplanned_peak);
  config.memory.budget = plan::BudgetRequest((free.processes[0].unplanned_peak + free.processes[0].floor) / 2);
  const RehearsedLayout within = rehearse_layout(config, devices_of(4));
  EXPECT_LE(within.processes[0].measured_peak, *plan::limit_of(config.memory.budget));
  EXPECT_EQ(within.processes[0].unplanned_peak, free.processes[0].unplanned_peak);
}

/// Slow links make it slow, by as much as they carry.
TEST(RehearsedLayout, TakesTheTimeOfItsLinks) {
  const fs::path folder = folder_of("rehearsed_links");
  constexpr double kLate = 0.004;
  const auto more_seconds = [&](const InParts& parts) {
    const Config config = without_files(config_of(folder, parts));
    Devices devices = devices_of(parts.processes);
    const double fast = rehearse_layout(config, devices).seconds;
    devices.links.within.seconds_per_message = devices.links.between.seconds_per_message = kLate;
    return rehearse_layout(config, devices).seconds - fast;
  };
  const auto blocks = static_cast<double>(config_of(folder, InParts{}).model.blocks);
  // Two sums in each block, forward and backward.
  EXPECT_GT(more_seconds({.kind = "gpt", .processes = 2, .tensor = 2}), 4 * kLate * blocks);
  // Weights of each block come, and its gradients leave.
  EXPECT_GT(more_seconds({.kind = "gpt", .processes = 2, .shard = ShardOf::Parameters}), kLate * blocks);
  // Onward and back.
  EXPECT_GT(more_seconds({.kind = "gpt", .processes = 2, .pipeline = 2}), 2 * kLate);
}

/// Of four stages on two machines the middle ones are far from each other, whichever of them was rehearsed.
TEST(RehearsedLayout, KnowsWhichStagesAreOnOtherMachines) {
  constexpr double kFar = 0.003;
  const fs::path folder = folder_of("rehearsed_machines");
  const Config config = without_files(config_of(folder, {.kind = "gpt", .processes = 4, .pipeline = 4}));
  Devices devices = devices_of(4);
  devices.links.per_machine = 2;
  devices.links.between.seconds_per_message = kFar;
  const RehearsedLayout found = rehearse_layout(config, devices);
  ASSERT_EQ(found.hand_over.size(), 4U);
  EXPECT_LT(found.hand_over[0], kFar / 2);
  EXPECT_GE(found.hand_over[1], kFar);
  EXPECT_LT(found.hand_over[2], kFar / 2);
  EXPECT_GT(found.seconds, 2 * kFar);
  // Replicas that lie across machines count, though the first does not.
  Devices three = devices_of(6);
  three.links.per_machine = 3;
  three.links.between.seconds_per_message = kFar;
  Config of_six = without_files(config_of(folder, {.kind = "gpt", .processes = 6, .pipeline = 2, .micro_batches = 6}));
  of_six.train.batch = 12;
  EXPECT_GE(rehearse_layout(of_six, three).hand_over.front(), kFar);
}

/// Stages in the middle with as many blocks are as one of them, which has most in flight.
TEST(RehearsedLayout, StagesInTheMiddleStandForThoseBehindThem) {
  const fs::path folder = folder_of("rehearsed_middle");
  Config config = without_files(config_of(folder, {.kind = "gpt", .processes = 4, .pipeline = 4}));
  config.model.blocks = 8;
  const RehearsedLayout found = rehearse_layout(config, devices_of(4));
  ASSERT_EQ(found.processes.size(), 4U);
  EXPECT_EQ(found.processes[1].measured_peak, found.processes[2].measured_peak);
  EXPECT_EQ(found.processes[2].place, 2);
  EXPECT_GT(found.processes[0].unplanned_peak, found.processes[2].unplanned_peak);
}

TEST(RehearsedLayout, LeavesNothingInMemory) {
  const fs::path folder = folder_of("rehearsed_memory");
  const memory::DeviceMemory& memory = memory::device_memory(c10::kCPU);
  for (const InParts& parts : {InParts{.kind = "gpt", .processes = 2, .pipeline = 2},
                               InParts{.kind = "gpt", .processes = 2, .shard = ShardOf::Parameters},
                               InParts{.kind = "gpt", .processes = 2, .tensor = 2}}) {
    const Config config = without_files(config_of(folder, parts));
    const RehearsedLayout first = rehearse_layout(config, devices_of(2));
    const Bytes before = memory.stats().allocated;
    const RehearsedLayout second = rehearse_layout(config, devices_of(2));
    EXPECT_EQ(memory.stats().allocated, before) << name_of(parts);
    for (std::size_t i = 0; i < first.processes.size(); ++i)
      EXPECT_EQ(first.processes[i].measured_peak, second.processes[i].measured_peak) << name_of(parts) << " " << i;
  }
}

/// Nor where it does not fit, in the midst of a pipeline's step.
TEST(RehearsedLayout, LeavesNothingInMemoryWhereItDoesNotFit) {
  const fs::path folder = folder_of("rehearsed_too_large");
  Config config = without_files(config_of(folder, {.kind = "gpt", .processes = 2, .pipeline = 2}));
  const RehearsedLayout free = rehearse_layout(config, devices_of(2));
  const memory::DeviceMemory& memory = memory::device_memory(c10::kCPU);
  const Bytes before = memory.stats().allocated;
  for (const int percent : {20, 40, 60, 80}) {
    config.memory.budget = plan::BudgetRequest(free.processes[0].floor * percent / 100);
    EXPECT_ANY_THROW((void)rehearse_layout(config, devices_of(2))) << percent;
    EXPECT_EQ(memory.stats().allocated, before) << percent;
  }
  config.memory.budget = {};
  const RehearsedLayout again = rehearse_layout(config, devices_of(2));
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(again.processes[i].measured_peak, free.processes[i].measured_peak) << i;
}

TEST(RehearsedLayout, RefusesWhatCannotBe) {
  const fs::path folder = folder_of("rehearsed_refused");
  Config config = without_files(config_of(folder, {.kind = "gpt", .processes = 2, .tensor = 2}));
  EXPECT_THROW((void)rehearse_layout(config, devices_of(3)), UsageError);
  config.optimizer.kind = "muon";
  EXPECT_THROW((void)rehearse_layout(config, devices_of(2)), UsageError);
}

}  // namespace
}  // namespace snug::train
