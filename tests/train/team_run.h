#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "snug/parallel/world.h"
#include "snug/train/team.h"
#include "snug/train/trainer.h"

namespace snug::testing {

constexpr std::int64_t kSixSteps = 6;

/// With a text; made anew by the test's own process.
std::filesystem::path folder_of(const std::string& name);

/// Of a small GPT, on the text of that folder.
train::Config six_steps(const std::filesystem::path& folder, double dropout = 0);

train::TrainResult run_in(train::Config config, const std::filesystem::path& folder, const train::Team& team,
                          train::Start start = train::Start::Anew);
/// All of the world, which must outlive it.
train::Team team_of(parallel::World& world, const train::TeamLayout& layout = {});

/// Losses and norms, by step.
using Lines = std::map<std::int64_t, nlohmann::ordered_json>;
Lines lines_of(const std::filesystem::path& folder);

/// Files of the state after so many steps.
std::string weights_after(const std::filesystem::path& folder, std::int64_t steps);
std::string optimizer_after(const std::filesystem::path& folder, std::int64_t steps);

/// Losses, norms, weights and what the optimizer keeps of `count` processes, under a budget: those of one process that
/// has all of their micro-batches. The configuration is without dropout, and its text in folder_of().
void is_one_process_with_as_many_micro_batches(int count, const std::string& name, const train::Config& config,
                                               std::int64_t accumulate = 1, std::string_view budget = "90%");

}  // namespace snug::testing
