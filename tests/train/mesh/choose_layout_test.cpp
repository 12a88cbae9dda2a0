// Layouts of several processes that are looked through, and the one that is found.
#include "snug/train/mesh/choose_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/described/described_device.h"
#include "snug/plan/budget_request.h"
#include "snug/train/mesh/next_layouts.h"
#include "tests/train/parts_run.h"
#include "tests/train/team_run.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;
using testing::config_of;
using testing::folder_of;
using ::testing::HasSubstr;

constexpr parallel::Link kWay{.bytes_per_second = 2e9, .seconds_per_message = 50e-6};

Devices machines(int count, int per_machine) {
  return {.count = count, .links = {.within = kWay, .between = kWay, .per_machine = per_machine}};
}

/// On a device that is not here, whose clock says the same each time: what is found depends on seconds.
Config small(const fs::path& folder) {
  Config config = config_of(folder, {.kind = "gpt", .processes = 1});
  config.train.device = described::install(described::describe("t4")).str();
  config.model.blocks = 4;
  config.train.batch = 8;
  config.train.accumulate = 1;
  config.state = {};
  config.output = {};
  return config;
}

std::set<std::vector<std::int64_t>> divisions(const std::vector<LayoutTrial>& trials) {
  std::set<std::vector<std::int64_t>> all;
  for (const LayoutTrial& one : trials)
    all.insert({one.config.parallel.tensor, one.config.parallel.context, one.config.parallel.pipeline});
  return all;
}

TEST(ChooseLayout, LooksAtEveryDivisionAndTellsTheFastestFirst) {
  report::Progress silent = report::Progress::silent();
  Config config = small(folder_of("layouts_all"));
  config.train.batch = 16;
  config.train.accumulate = 4;
  for (const char* const key : {"parallel.shard", "train.accumulate"}) config.given.insert(key);
  const std::vector<LayoutTrial> trials = try_layouts(config, machines(4, 4), silent);
  EXPECT_EQ(divisions(trials),
            (std::set<std::vector<std::int64_t>>{
                {1, 1, 1}, {1, 1, 2}, {1, 1, 4}, {1, 2, 1}, {1, 2, 2}, {1, 4, 1}, {2, 1, 1}, {2, 1, 2}, {4, 1, 1}}));
  double fastest = std::numeric_limits<double>::infinity();
  for (const LayoutTrial& one : trials) fastest = std::min(fastest, one.made ? one.made->seconds : fastest);
  // Those within 5 % of the fastest are in the order of how simple they are.
  const auto as_fast = [&](double seconds) { return seconds <= 1.05 * fastest ? fastest : seconds; };
  for (std::size_t i = 0; i < trials.size(); ++i) {
    ASSERT_TRUE(trials[i].made) << trials[i].why_not;
    if (i > 0) {
      EXPECT_GE(as_fast(trials[i].made->seconds), as_fast(trials[i - 1].made->seconds));
    }
    const ParallelConfig& p = trials[i].config.parallel;
    EXPECT_EQ(trials[i].config.train.accumulate % p.pipeline, 0);
    for (std::size_t k = 0; k < i; ++k) EXPECT_FALSE(trials[i].config == trials[k].config) << "once";
  }
}

TEST(ChooseLayout, KeepsWhatIsSetAndLayersWithinAMachine) {
  Config config = small(folder_of("layouts_set"));
  config.parallel.pipeline = 2;
  config.parallel.shard = ShardOf::Optimizer;
  config.train.accumulate = 4;
  for (const char* const key : {"parallel.pipeline", "parallel.shard", "train.accumulate"}) config.given.insert(key);
  report::Progress silent = report::Progress::silent();
  const std::vector<LayoutTrial> trials = try_layouts(config, machines(4, 1), silent);
  EXPECT_EQ(divisions(trials), (std::set<std::vector<std::int64_t>>{{1, 1, 2}, {1, 2, 2}}));
  for (const LayoutTrial& one : trials) {
    EXPECT_EQ(one.config.parallel.shard, ShardOf::Optimizer);
    EXPECT_EQ(one.config.train.accumulate, 4);
  }
}

/// Of replicas that do not fit shards are tried, and what fits comes first; what does not says what it takes.
TEST(ChooseLayout, GoesOnInShardsWhereNothingElseFits) {
  Config config = small(folder_of("layouts_shards"));
  for (const auto& [key, value] :
       {std::pair("parallel.tensor", &config.parallel.tensor), std::pair("parallel.context", &config.parallel.context),
        std::pair("parallel.pipeline", &config.parallel.pipeline),
        std::pair("train.accumulate", &config.train.accumulate)}) {
    config.given.insert(key);
    *value = 1;
  }
  report::Progress silent = report::Progress::silent();
  const Devices devices = machines(4, 4);
  Config sharded = config;
  sharded.parallel.shard = ShardOf::Gradients;
  const auto floor_of = [&](const Config& one) { return rehearse_layout(one, devices).processes[0].floor; };
  const Bytes memory = (floor_of(config) + floor_of(sharded)) / 2;
  config.memory.budget = plan::BudgetRequest(memory);
  const std::vector<LayoutTrial> trials = try_layouts(config, devices, silent);
  ASSERT_TRUE(trials.front().made);
  EXPECT_LE(trials.front().made->processes[0].measured_peak, memory);
  ASSERT_FALSE(trials.back().made);
  EXPECT_EQ(trials.back().config.parallel.shard, ShardOf::None);
  EXPECT_THAT(trials.back().why_not, HasSubstr("takes "));
  EXPECT_GT(trials.back().floor, memory);
  EXPECT_EQ(to_json(trials.back(), devices).at("fits"), false);
  EXPECT_THAT(render(trials, devices), HasSubstr(trials.back().why_not));
}

std::vector<Config> all_further(const Config& from, const Devices& devices, std::size_t way, std::int64_t blocks) {
  std::vector<Config> all;
  const Further further = ways_further(from, devices).at(way);
  for (auto next = further(from, blocks); next; next = further(*next, blocks)) all.push_back(*next);
  return all;
}

TEST(NextLayouts, GoFurtherInEachWayAsFarAsItLeads) {
  Config config = small(folder_of("layouts_further"));
  config.train.batch = 48;
  config.parallel.pipeline = 2;
  config.train.accumulate = 2;
  const Devices devices = machines(4, 4);
  std::vector<ShardOf> shards;
  for (const Config& one : all_further(config, devices, 0, 16)) shards.push_back(one.parallel.shard);
  EXPECT_EQ(shards, (std::vector<ShardOf>{ShardOf::Optimizer, ShardOf::Gradients})) << "no weights in pipelines";
  std::vector<std::int64_t> counts;
  for (const Config& one : all_further(config, devices, 1, 16)) counts.push_back(one.train.accumulate);
  EXPECT_EQ(counts, (std::vector<std::int64_t>{3, 4, 6, 8, 12, 24}));
  std::vector<std::string> schedules;
  for (const Config& one : all_further(config, devices, 2, 16)) schedules.push_back(one.parallel.schedule);
  EXPECT_EQ(schedules, (std::vector<std::string>{"interleaved(2)", "interleaved(4)", "interleaved(8)"}));
  config.parallel.schedule = "interleaved(2)";
  counts.clear();
  for (const Config& one : all_further(config, devices, 1, 16)) counts.push_back(one.train.accumulate);
  EXPECT_EQ(counts, (std::vector<std::int64_t>{4, 6, 8, 12, 24})) << "rounds of all stages";
  config.given.insert("parallel.shard");
  EXPECT_EQ(ways_further(config, devices).size(), 4U);
}

/// Of 8 processes on 2 machines: what crosses between them is then the shards' gradients alone.
TEST(NextLayouts, ShardsStayWithinAMachineWhereThereAreSeveral) {
  Config config = small(folder_of("layouts_hybrid"));
  config.train.batch = 8;
  const Devices devices = machines(8, 4);
  EXPECT_EQ(layout_in_words(all_further(config, devices, 3, 16).at(0), devices), "data 8, optimizer in shards of 4");
  Config unsharded = config;
  unsharded.given.insert("parallel.shard");
  EXPECT_TRUE(all_further(unsharded, devices, 3, 16).empty()) << "there are no shards";
  config.parallel.shard = ShardOf::Gradients;
  const std::vector<Config> found = all_further(config, devices, 3, 16);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].parallel.shard_degree, 4);
  EXPECT_EQ(layout_in_words(found[0], devices), "data 8, gradients in shards of 4");
  EXPECT_EQ(settings_between(config, found[0]), (std::vector<std::string>{"parallel.shard_degree=4"}));
  config.parallel.tensor = 2;
  EXPECT_EQ(all_further(config, devices, 3, 16).at(0).parallel.shard_degree, 2);
  config.parallel.tensor = 4;
  EXPECT_TRUE(all_further(config, devices, 3, 16).empty()) << "one replica on each";
}

TEST(NextLayouts, TheOptimizersStateMayBeOnTheHostWhereItHasMemory) {
  Config config = small(folder_of("layouts_offload"));
  const Devices devices = machines(4, 4);
  EXPECT_TRUE(all_further(config, devices, 4, 16).empty());
  config.memory.budget = plan::BudgetRequest(1_GiB);
  config.memory.host_budget = plan::BudgetRequest(1_GiB);
  const std::vector<Config> found = all_further(config, devices, 4, 16);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(settings_between(config, found[0]), (std::vector<std::string>{"memory.optimizer=streamed"}));
  EXPECT_THAT(layout_in_words(found[0], devices), HasSubstr("optimizer on the host"));
}

/// Where heads cannot be divided it is the only way.
TEST(NextLayouts, SequencesMayBeInARing) {
  Config config = small(folder_of("layouts_ring"));
  const Devices devices = machines(4, 4);
  EXPECT_TRUE(all_further(config, devices, 3, 16).empty());
  config.parallel.context = 2;
  const std::vector<Config> found = all_further(config, devices, 3, 16);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(settings_between(config, found[0]), (std::vector<std::string>{"parallel.context_by=ring"}));
  EXPECT_THAT(layout_in_words(found[0], devices), HasSubstr("context 2 in a ring"));
  config.model.sequence = 66;
  EXPECT_TRUE(all_further(config, devices, 3, 16).empty());
}

/// 6 processes on 2 machines: pairs would lie across them.
TEST(NextLayouts, LayersLieWithinAMachineUnlessThatIsSet) {
  Config config = small(folder_of("layouts_machines"));
  config.train.batch = 12;
  std::set<std::int64_t> tensors;
  for (const Config& one : first_layouts(config, machines(6, 3))) tensors.insert(one.parallel.tensor);
  EXPECT_EQ(tensors, (std::set<std::int64_t>{1, 3}));
  config.parallel.tensor = 2;
  config.given.insert("parallel.tensor");
  tensors.clear();
  for (const Config& one : first_layouts(config, machines(6, 3))) tensors.insert(one.parallel.tensor);
  EXPECT_EQ(tensors, (std::set<std::int64_t>{2}));
}

TEST(NextLayouts, WhatIsSetIsOfLayoutsInWhichItDoesSomething) {
  const Config config = small(folder_of("layouts_applies"));
  Config staged = config, in_sequences = config;
  staged.parallel.schedule = "f_then_b";
  staged.given.insert("parallel.schedule");
  for (const Config& one : first_layouts(staged, machines(4, 4))) {
    EXPECT_GT(one.parallel.pipeline, 1);
    EXPECT_EQ(one.parallel.schedule, "f_then_b");
  }
  in_sequences.parallel.sequence_parallel = false;
  in_sequences.given.insert("parallel.sequence_parallel");
  const std::vector<Config> in_parts = first_layouts(in_sequences, machines(4, 4));
  EXPECT_FALSE(in_parts.empty());
  for (const Config& one : in_parts) {
    EXPECT_GT(one.parallel.tensor, 1);
    EXPECT_FALSE(one.parallel.sequence_parallel);
  }
}

/// Neither more shards nor more micro-batches alone are enough.
TEST(ChooseLayout, GoesSeveralWaysWhereNoneAloneFits) {
  Config config = small(folder_of("layouts_both"));
  config.train.batch = 32;
  config.memory.strategy = "none";
  for (const char* const key : {"parallel.tensor", "parallel.context", "parallel.pipeline"}) config.given.insert(key);
  const Devices devices = machines(2, 2);
  Config both = config;
  both.parallel.shard = ShardOf::Parameters;
  both.train.accumulate = 16;
  config.memory.budget = plan::BudgetRequest(rehearse_layout(both, devices).processes[0].unplanned_peak * 21 / 20);
  report::Progress silent = report::Progress::silent();
  const std::vector<LayoutTrial> trials = try_layouts(config, devices, silent);
  ASSERT_TRUE(trials.front().made) << trials.front().why_not;
  EXPECT_NE(trials.front().config.parallel.shard, ShardOf::None);
  EXPECT_GT(trials.front().config.train.accumulate, 1);
}

TEST(ChooseLayout, SettingsMakeTheOneTheOther) {
  Config from = small(folder_of("layouts_settings")), to = from;
  EXPECT_TRUE(settings_between(from, to).empty());
  to.parallel.tensor = 2;
  to.parallel.sequence_parallel = true;
  to.parallel.pipeline = 2;
  to.parallel.schedule = "interleaved(2)";
  to.parallel.shard = ShardOf::Gradients;
  to.train.accumulate = 4;
  to.train.threads = 3;
  for (const std::string& setting : settings_between(from, to)) set_key(from, setting);
  EXPECT_TRUE(from == to);
}

}  // namespace
}  // namespace snug::train
