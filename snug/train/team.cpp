#include "snug/train/team.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/hash.h"
#include "snug/parallel/group_agreement.h"
#include "snug/parallel/launch.h"
#include "snug/train/config.h"
#include "snug/train/interrupt.h"

namespace snug::train {
namespace {

constexpr std::int64_t kHead = sizeof(double) + 1;  // of a word: the loss, and whether it stops

at::Tensor as_bytes(const Team::Word& word) {
  at::Tensor bytes = at::empty({kHead + static_cast<std::int64_t>(word.random.size())}, at::kByte);
  auto* const at = bytes.mutable_data_ptr<std::uint8_t>();
  std::memcpy(at, &word.loss, sizeof(double));
  at[sizeof(double)] = word.stops ? 1 : 0;
  std::ranges::copy(word.random, at + kHead);
  return bytes;
}

Team::Word word_of(const at::Tensor& bytes) {
  Team::Word word;
  const auto* const at = bytes.const_data_ptr<std::uint8_t>();
  std::memcpy(&word.loss, at, sizeof(double));
  word.stops = at[sizeof(double)] != 0;
  word.random.assign(at + kHead, at + bytes.numel());
  return word;
}

/// As a number of few enough bits for a double.
double hash_of(std::string_view text) {
  return static_cast<double>(hash_64(std::as_bytes(std::span(text.data(), text.size()))) >> 12U);
}

/// What each process may have its own way.
std::string settings_of(const Config& config) {
  nlohmann::ordered_json all = to_json(config);
  for (const char* const section : {"memory", "monitor", "state", "output"}) all.erase(section);
  all["train"].erase("threads");
  all["parallel"].erase("timeout");
  return all.dump();
}

}  // namespace

std::shared_ptr<Agreement> Team::agreement() const {
  return size() > 1 ? parallel::agreement_of(world_->all()) : alone();
}

Team Team::of_launcher(const Config& config) {
  const auto launched = parallel::launched();
  if (!launched) return {};
  const std::chrono::duration<double> timeout(config.parallel.timeout);
  return Team(parallel::World::meet(*launched, {.timeout = std::chrono::ceil<std::chrono::milliseconds>(timeout)}));
}

std::unique_ptr<parallel::DataParallel> Team::data_parallel(const std::vector<at::Tensor>& parameters,
                                                            const Config& config) const {
  if (size() == 1) return nullptr;
  parallel::DataParallelOptions options{.combine = parallel::DataParallelOptions::Combine::Sum};
  if (config.parallel.reduce == ReduceIn::Fp32) options.reduce_in = at::kFloat;
  if (config.parallel.reduce == ReduceIn::Bf16) options.reduce_in = at::kBFloat16;
  return std::make_unique<parallel::DataParallel>(parameters, world_->all(), options);
}

void Team::copy_from_first(const std::vector<at::Tensor>& tensors) const {
  if (size() > 1) parallel::copy_from_first(*world_->all(), tensors);
}

std::vector<MicroBatch> Team::part_of(const data::Batch& batch, std::int64_t accumulate) const {
  const std::int64_t parts = size() * accumulate;
  std::vector<MicroBatch> all = micro_batches(batch, parts);
  if (size() == 1) return all;
  if (static_cast<std::int64_t>(all.size()) < parts) {
    throw UsageError(
        fmt::format("train: of the {} parts of a batch for {} processes, {} have no target; use a larger train.batch, "
                    "or fewer of them",
                    parts, size(), parts - static_cast<std::int64_t>(all.size())));
  }
  const auto first = all.begin() + rank() * accumulate;
  return {first, first + accumulate};
}

std::vector<Team::Word> Team::tell(const Word& mine) const {
  if (size() == 1) return {mine};
  const at::Tensor bytes = as_bytes(mine), all = at::empty({size(), bytes.numel()}, at::kByte);
  world_->all()->run(parallel::AllGather{all, bytes});
  std::vector<Word> words;
  for (int rank = 0; rank < size(); ++rank) words.push_back(word_of(all[rank]));
  return words;
}

std::vector<double> Team::gather(const std::vector<double>& mine) const {
  if (size() == 1) return mine;
  const auto count = static_cast<std::int64_t>(mine.size());
  const at::Tensor numbers = at::empty({count}, at::kDouble), all = at::empty({size(), count}, at::kDouble);
  std::memcpy(numbers.mutable_data_ptr(), mine.data(), mine.size() * sizeof(double));
  world_->all()->run(parallel::AllGather{all, numbers});
  const auto* const first = all.const_data_ptr<double>();
  return {first, first + all.numel()};
}

bool Team::interrupted_anywhere() const { return std::ranges::count(gather({interrupted() ? 1.0 : 0.0}), 1.0) > 0; }

void check_same_in_team(const Config& config, const Team& team, const std::string& fingerprint, std::int64_t done) {
  if (team.size() == 1) return;
  const std::array<std::pair<const char*, const char*>, 5> what = {{
      {"go on from other steps", "is output.folder the same for all?"},
      {"have other settings", "give all the same, but for memory, monitor, state and output"},
      {"have other data or another pretrained model", "give all the same files"},
      {"have other numbers of threads, and so other bits", "set train.threads"},
      {"have other vector instructions, and so other bits", "set ATEN_CPU_CAPABILITY to what all have"},
  }};
  const std::vector<double> all =
      team.gather({static_cast<double>(done), hash_of(settings_of(config)), hash_of(fingerprint),
                   static_cast<double>(at::get_num_threads()), hash_of(at::get_cpu_capability())});
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] == all[i % what.size()]) continue;
    const auto& [differ, cure] = what.at(i % what.size());
    throw UsageError(fmt::format("train: the processes of rank 0 and {} {}; {}", i / what.size(), differ, cure));
  }
}

void check_for_team(const Config& config, const Team& team) {
  if (team.size() == 1) return;
  const auto refuse = [&](std::string_view key, std::string_view why) {
    throw UsageError(fmt::format("train: {} and {} processes: {}", key, team.size(), why));
  };
  if (!config.memory.allow.empty()) refuse("memory.allow", "each would choose by itself; choose in one process first");
  if (config.optimizer.in_backward)
    refuse("optimizer.in_backward = true",
           "weights would be updated before the gradients of all are there; leave it out");
  if (config.memory.weights == WeightsIn::Streamed)
    refuse("memory.weights = \"streamed\"", "gradients leave before those of all are there; leave it out");
  if (const std::int64_t parts = team.size() * config.train.accumulate; config.train.batch % parts != 0) {
    refuse(fmt::format("train.batch = {}", config.train.batch),
           fmt::format("it must be a multiple of {}, the number of processes times train.accumulate", parts));
  }
  if (!c10::Device(config.train.device).is_cpu())
    refuse(fmt::format("train.device = \"{}\"", config.train.device), "only those of a CPU train together so far");
}

}  // namespace snug::train
