// Layouts of devices that are not here: on their own clock, of models that no machine of ours has room for.
#include <gtest/gtest.h>

#include <string>

#include "snug/described/described_device.h"
#include "snug/memory/device_memory.h"
#include "snug/plan/budget_request.h"
#include "snug/train/mesh/rehearsed_layout.h"
#include "tests/train/parts_run.h"
#include "tests/train/team_run.h"

namespace snug::train {
namespace {

using testing::config_of;
using testing::folder_of;
using testing::InParts;
using testing::name_of;

Devices devices_of(int count, int per_machine) {
  constexpr parallel::Link kWithin{.bytes_per_second = 200e9, .seconds_per_message = 3e-6},
      kBetween{.bytes_per_second = 25e9, .seconds_per_message = 5e-6};
  return {.count = count, .links = {.within = kWithin, .between = kBetween, .per_machine = per_machine}};
}

Config described_config(const std::string& folder, const InParts& parts) {
  Config config = config_of(folder_of("described_" + folder), parts);
  config.state = {};
  config.output = {};
  config.train.device = described::install(described::describe("a100-80gb")).str();
  return config;
}

TEST(DescribedLayout, HasTheSameSecondsAndPeaksEveryTime) {
  for (const InParts& parts :
       {InParts{.kind = "gpt", .processes = 2}, InParts{.kind = "gpt", .processes = 2, .shard = ShardOf::Parameters},
        InParts{.kind = "llama", .processes = 4, .tensor = 2, .sequences = true},
        InParts{.kind = "llama", .processes = 2, .context = 2},
        InParts{.kind = "gpt2", .processes = 4, .tensor = 2, .pipeline = 2}}) {
    SCOPED_TRACE(name_of(parts));
    const Config config = described_config(name_of(parts), parts);
    const Devices devices = devices_of(parts.processes, 2);
    const RehearsedLayout first = rehearse_layout(config, devices), second = rehearse_layout(config, devices);
    EXPECT_GT(first.seconds, 0);
    EXPECT_NEAR(second.seconds, first.seconds, 1e-9);
    for (std::size_t i = 0; i < first.processes.size(); ++i) {
      EXPECT_GT(first.processes[i].measured_peak, 0);
      EXPECT_EQ(second.processes[i].measured_peak, first.processes[i].measured_peak);
      EXPECT_EQ(second.processes[i].unplanned_peak, first.processes[i].unplanned_peak);
    }
    EXPECT_EQ(memory::device_memory(described::install(described::description())).stats().allocated, 0);
  }
}

TEST(DescribedLayout, TakesTheTimeOfItsLinks) {
  const auto seconds_with = [&](const InParts& parts, double bytes_per_second, double seconds_per_message) {
    Devices devices = devices_of(parts.processes, parts.processes);
    devices.links.within = {.bytes_per_second = bytes_per_second, .seconds_per_message = seconds_per_message};
    return rehearse_layout(described_config("links_" + name_of(parts), parts), devices).seconds;
  };
  constexpr double kLate = 1e-3, kFast = 1e15;
  const auto blocks = static_cast<double>(config_of(folder_of("described_links"), InParts{}).model.blocks);
  const InParts in_layers{.kind = "gpt", .processes = 2, .tensor = 2},
      stages{.kind = "gpt", .processes = 2, .pipeline = 2};
  // Two sums in each block, forward and backward.
  EXPECT_GT(seconds_with(in_layers, kFast, kLate), seconds_with(in_layers, kFast, 0) + 4 * kLate * blocks);
  EXPECT_GT(seconds_with(stages, kFast, kLate), seconds_with(stages, kFast, 0) + 2 * kLate);
}

TEST(DescribedLayout, HasAsManyMicroBatchesInFlightAsStages) {
  constexpr int kStages = 20;
  const auto found_with = [&](std::int64_t micro_batches) {
    const InParts parts{.kind = "gpt", .processes = kStages, .pipeline = kStages, .micro_batches = micro_batches};
    Config config = described_config("stages", parts);
    config.model.blocks = kStages;
    config.train.batch = 4 * micro_batches;
    return rehearse_layout(config, devices_of(kStages, kStages));
  };
  const auto of_first = [](const RehearsedLayout& found) { return found.processes.front().measured_peak; };
  const RehearsedLayout ten = found_with(10), fifteen = found_with(15), twenty = found_with(20), forty = found_with(40);
  ASSERT_EQ(forty.processes.size(), static_cast<std::size_t>(kStages));
  const Bytes of_five = of_first(fifteen) - of_first(ten);
  EXPECT_NEAR(static_cast<double>(of_first(twenty) - of_first(fifteen)), static_cast<double>(of_five), 4096);
  EXPECT_LT(of_first(forty) - of_first(twenty), of_five / 10) << "tokens alone, as no more are in flight";
}

/// More than a device has, of which each process keeps a part.
TEST(DescribedLayout, OfAModelThatNoDeviceHasRoomFor) {
  const InParts parts{.kind = "gpt", .processes = 64, .tensor = 8, .pipeline = 8, .vocabulary = 256};
  Config config = described_config("large", parts);
  config.model.blocks = 16;
  config.model.width = 16384;
  config.model.heads = 128;
  config.model.sequence = 1024;
  config.train.batch = 8;
  config.train.accumulate = 8;
  config.precision.compute = Compute::Bf16;
  config.memory.budget = plan::BudgetRequest(described::description().usable());
  const RehearsedLayout found = rehearse_layout(config, devices_of(64, 8));
  ASSERT_EQ(found.processes.size(), 8U);
  Bytes all = 0;
  for (const RehearsedProcess& one : found.processes) {
    EXPECT_LE(one.measured_peak, described::description().usable());
    all += 8 * one.measured_peak;
  }
  EXPECT_GT(all, 600_GiB);  // 51 billion weights in fp32, their gradients and two moments
  EXPECT_GT(found.tokens_per_second, 0);
}

}  // namespace
}  // namespace snug::train
