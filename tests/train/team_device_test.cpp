// Runs of several processes whose models are on accelerators, each on one of its own.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "snug/plan/budget_request.h"
#include "snug/train/run_device.h"
#include "tests/base/fault.h"
#include "tests/device/simulated_device.h"
#include "tests/parallel/processes.h"
#include "tests/train/parts_run.h"
#include "tests/train/team_run.h"

namespace snug::train {
namespace {

using testing::config_of;
using testing::folder_of;
using testing::in_processes;
using testing::InParts;
using testing::kSixSteps;
using testing::lines_of;
using testing::optimizer_after;
using testing::run_in;
using testing::run_parts;
using testing::six_steps;
using testing::team_of;
using testing::weights_after;

constexpr const char* kThere = "hpu";  // without an index

/// Of one process, which has not run a step before.
void run_alone(Config config, const std::filesystem::path& folder) {
  in_processes(1, [&](parallel::World&) {
    testing::install_simulated_devices();  // before the first backward pass
    (void)run_in(config, folder, Team());
  });
}

/// With those of validation.
std::vector<nlohmann::ordered_json> losses_of(const std::filesystem::path& folder) {
  std::vector<nlohmann::ordered_json> losses;
  for (auto [step, numbers] : lines_of(folder)) {
    numbers.erase(1);  // the gradients' norm
    losses.push_back(numbers);
  }
  return losses;
}

class OnDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::can_simulate_devices()) GTEST_SKIP() << "a LibTorch for CUDA takes no other accelerator beside it";
  }
};
class ShardsOnDevices : public OnDevices, public ::testing::WithParamInterface<ShardOf> {};

TEST_P(ShardsOnDevices, TheBitsAreThoseOfOneProcessOnOneAndTheCapHolds) {
  const auto folder = folder_of(fmt::format("on_devices/{}", static_cast<int>(GetParam())));
  Config config = six_steps(folder);
  config.model.width = 96;         // most of the weights are divided
  config.optimizer.clip_norm = 0;  // norms of parts are added up in another order there
  const std::int64_t micro_batches = GetParam() == ShardOf::None ? 1 : 2;  // added up first where gradients are whole
  config.train.device = kThere;
  in_processes(2, [&](parallel::World& world) {
    testing::install_simulated_devices();
    Config within = config;
    within.parallel.shard = GetParam();
    within.train.accumulate = micro_batches;
    within.memory.budget = plan::parse_budget("90%");
    EXPECT_EQ(device_of(within), c10::Device(testing::kSimulated, static_cast<c10::DeviceIndex>(world.all()->rank())));
    std::optional<testing::OrderOfChance> order;
    if (GetParam() == ShardOf::Parameters) order.emplace(5);  // streams lag
    const TrainResult result = run_in(within, folder / "team", team_of(world));
    EXPECT_EQ(result.steps, kSixSteps);
    EXPECT_LE(result.memory.allocated_peak, result.plan.budget);
    EXPECT_GT(result.memory.allocated_peak, 0) << "of the device";
    EXPECT_GT(result.replayed_ops, 0);
  });
  Config one = config;
  one.train.accumulate = 2 * micro_batches;
  run_alone(one, folder / "one");
  EXPECT_EQ(losses_of(folder / "team"), losses_of(folder / "one"));
  EXPECT_EQ(losses_of(folder / "team").size(), kSixSteps);
  EXPECT_TRUE(weights_after(folder / "team", kSixSteps) == weights_after(folder / "one", kSixSteps));
  EXPECT_TRUE(optimizer_after(folder / "team", kSixSteps) == optimizer_after(folder / "one", kSixSteps));
}
INSTANTIATE_TEST_SUITE_P(Shards, ShardsOnDevices,
                         ::testing::Values(ShardOf::None, ShardOf::Gradients, ShardOf::Parameters));

/// ZeRO-Infinity: what is streamed is read on the host, for the other process, too.
TEST_F(OnDevices, ShardsAreStreamedAndResumedWithoutAnotherBit) {
  const auto folder = folder_of("on_devices/streamed");
  in_processes(2, [&](parallel::World& world) {
    testing::install_simulated_devices();
    Config config = six_steps(folder);
    config.model.width = 192;
    config.train.device = kThere;
    config.parallel.shard = ShardOf::Parameters;
    config.optimizer.schedule = LearningRate::Constant;  // of any number of steps
    const TrainResult whole = run_in(config, folder / "whole", team_of(world));
    config.memory.weights = KeptIn::Streamed;
    config.memory.host_budget = plan::BudgetRequest(1_GiB);
    const double budget = team_of(world).gather({0.6 * static_cast<double>(whole.peaks.predicted)}).front();
    config.memory.budget = plan::BudgetRequest(static_cast<Bytes>(budget));
    config.train.steps = 3;
    EXPECT_LE(run_in(config, folder / "streamed", team_of(world)).memory.allocated_peak, static_cast<Bytes>(budget));
    config.train.steps = kSixSteps;
    EXPECT_EQ(run_in(config, folder / "streamed", team_of(world), Start::Resume).resumed_from, 3);
  });
  EXPECT_EQ(losses_of(folder / "streamed"), losses_of(folder / "whole"));
  EXPECT_TRUE(weights_after(folder / "streamed", kSixSteps) == weights_after(folder / "whole", kSixSteps));
}

TEST_F(OnDevices, AreNotNamedWhereEachHasOneOfItsOwn) {
  in_processes(2, [](parallel::World&) {
    testing::install_simulated_devices();
    Config config;
    config.train.device = "hpu:1";
    EXPECT_THAT(testing::fault([&] { (void)device_of(config); }),
                ::testing::HasSubstr("2 processes on this machine: all of them would be on that one of 2"));
  });
}

/// Layers in parts, sequences, stages.
class PartsOnDevices : public OnDevices, public ::testing::WithParamInterface<InParts> {};

TEST_P(PartsOnDevices, AreThoseOfOneProcessOnOne) {
  const InParts parts = GetParam();
  const auto folder = folder_of("parts_on_devices/" + testing::name_of(parts));
  Config config = config_of(folder, parts);
  config.train.device = kThere;
  in_processes(parts.processes, [&](parallel::World& world) {
    testing::install_simulated_devices();
    (void)run_parts(config, folder / "free", world);
    Config within = config;
    within.memory.budget = plan::Percent{static_cast<double>(parts.percent)};
    const TrainResult result = run_parts(within, folder / "planned", world);
    EXPECT_GT(result.replayed_ops, 0);
    EXPECT_LE(result.memory.allocated_peak, result.plan.budget);
  });
  Config one = config;
  one.parallel = {};
  one.train.accumulate *= parts.replicas();
  run_alone(one, folder / "one");
  EXPECT_EQ(lines_of(folder / "planned"), lines_of(folder / "free"));
  EXPECT_TRUE(weights_after(folder / "planned", kSixSteps) == weights_after(folder / "free", kSixSteps));
  testing::expect_close(folder / "free", folder / "one", testing::name_of(parts));
}
std::string name_of(const ::testing::TestParamInfo<InParts>& named) { return testing::name_of(named.param); }
INSTANTIATE_TEST_SUITE_P(
    Parts, PartsOnDevices,
    ::testing::Values(InParts{.tensor = 2, .kept_in_parts = true}, InParts{.pipeline = 2},
                      // Two on each device.
                      InParts{
                          .processes = 4, .tensor = 2, .sequences = true, .shard = ShardOf::Parameters, .percent = 90}),
    name_of);
INSTANTIATE_TEST_SUITE_P(MoreParts, PartsOnDevices,
                         ::testing::Values(InParts{.tensor = 2}, InParts{.tensor = 2, .sequences = true},
                                           InParts{.context = 2}),
                         name_of);

}  // namespace
}  // namespace snug::train
