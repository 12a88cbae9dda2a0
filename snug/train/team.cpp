#include "snug/train/team.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
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
#include "snug/optim/optimizer.h"
#include "snug/parallel/group_agreement.h"
#include "snug/parallel/launch.h"
#include "snug/train/config.h"
#include "snug/train/interrupt.h"

namespace snug::train {
namespace {

/// Whether it stops, its losses, and its generator's state, of which all have the same numbers.
at::Tensor as_bytes(const Team::Word& word) {
  const std::size_t losses = word.losses.size() * sizeof(double);
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(1 + losses + word.random.size())}, at::kByte);
  auto* const at = bytes.mutable_data_ptr<std::uint8_t>();
  at[0] = word.stops ? 1 : 0;
  std::memcpy(at + 1, word.losses.data(), losses);
  std::ranges::copy(word.random, at + 1 + losses);
  return bytes;
}

Team::Word word_of(const at::Tensor& bytes, std::size_t losses) {
  Team::Word word;
  const auto* const at = bytes.const_data_ptr<std::uint8_t>();
  word.stops = at[0] != 0;
  word.losses.resize(losses);
  std::memcpy(word.losses.data(), at + 1, losses * sizeof(double));
  word.random.assign(at + 1 + losses * sizeof(double), at + bytes.numel());
  return word;
}

/// What is smaller stays whole in each process: gathering it takes longer than it is worth.
constexpr Bytes kSmallestDivided = 64_KiB;

/// As a number of few enough bits for a double.
double hash_of(std::string_view text) {
  return static_cast<double>(hash_64(std::as_bytes(std::span(text.data(), text.size()))) >> 12U);
}

/// What each process may have its own way.
std::string settings_of(const Config& config) {
  nlohmann::ordered_json all = to_json(config);
  for (const char* const section : {"memory", "monitor"}) all.erase(section);
  if (config.parallel.shard == ShardOf::None) {  // else they save together
    for (const char* const section : {"state", "output"}) all.erase(section);
  }
  all["train"].erase("threads");
  all["parallel"].erase("timeout");
  return all.dump();
}

}  // namespace

std::shared_ptr<Agreement> Team::agreement() const {
  return size() > 1 ? parallel::agreement_of(world_->all()) : alone();
}

std::vector<parallel::DividedParameter> Team::divide(const std::vector<at::Tensor>& parameters,
                                                     StreamedTensors& streamed) const {
  auto divided = parallel::divide(parameters, *world_, kSmallestDivided,
                                  [&](const at::Tensor& parameter, std::unique_ptr<memory::ContentsRoom> room) {
                                    streamed.add_with_room(parameter, std::move(room));
                                  });
  streamed.set_cost(parallel::measured_gather_cost(*world_));
  return divided;
}

Team Team::of_launcher(const Config& config) {
  const auto launched = parallel::launched();
  if (!launched) return {};
  const std::chrono::duration<double> timeout(config.parallel.timeout);
  return Team(parallel::World::meet(*launched, {.timeout = std::chrono::ceil<std::chrono::milliseconds>(timeout)}));
}

std::unique_ptr<parallel::DataParallel> Team::data_parallel(const std::vector<at::Tensor>& parameters,
                                                            const Config& config,
                                                            std::vector<parallel::DividedParameter> divided) const {
  if (size() == 1) return nullptr;
  parallel::DataParallelOptions options{.combine = parallel::DataParallelOptions::Combine::Sum};
  if (config.parallel.reduce == ReduceIn::Fp32) options.reduce_in = at::kFloat;
  if (config.parallel.reduce == ReduceIn::Bf16) options.reduce_in = at::kBFloat16;
  if (config.parallel.shard != ShardOf::None) options.leaves = parallel::DataParallelOptions::Leaves::Shards;
  options.divided = std::move(divided);
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
  std::vector<MicroBatch> mine;
  for (std::int64_t i = rank(); i < parts; i += size()) mine.push_back(std::move(all[static_cast<std::size_t>(i)]));
  return mine;
}

std::vector<Team::Word> Team::tell(const Word& mine) const {
  if (size() == 1) return {mine};
  const at::Tensor bytes = as_bytes(mine), all = at::empty({size(), bytes.numel()}, at::kByte);
  world_->all()->run(parallel::AllGather{all, bytes});
  std::vector<Word> words;
  for (int rank = 0; rank < size(); ++rank) words.push_back(word_of(all[rank], mine.losses.size()));
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

std::vector<std::string> Team::gather_texts(const std::string& mine) const {
  if (size() == 1) return {mine};
  std::size_t most = 0;
  const std::vector<double> lengths = gather({static_cast<double>(mine.size())});
  for (const double length : lengths) most = std::max(most, static_cast<std::size_t>(length));
  const at::Tensor bytes = at::zeros({static_cast<std::int64_t>(most)}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), mine.data(), mine.size());
  const at::Tensor all = at::empty({size(), bytes.numel()}, at::kByte);
  group().run(parallel::AllGather{all, bytes});
  std::vector<std::string> texts;
  const auto* at = all.const_data_ptr<std::uint8_t>();
  for (const double length : lengths) {
    texts.emplace_back(at, at + static_cast<std::size_t>(length));
    at += most;
  }
  return texts;
}

optim::OtherParts Team::other_parts() const {
  if (size() == 1) return {};
  const auto together = [this](parallel::Reduce how) {
    return [world = world_, how](std::span<std::int64_t> numbers) {
      world->all()->run(parallel::AllReduce{
          at::from_blob(numbers.data(), {static_cast<std::int64_t>(numbers.size())}, at::kLong), how});
    };
  };
  return {.add_up = together(parallel::Reduce::Sum), .largest = together(parallel::Reduce::Max)};
}

bool Team::interrupted_anywhere() const { return std::ranges::count(gather({interrupted() ? 1.0 : 0.0}), 1.0) > 0; }

void check_same_in_team(const Config& config, const Team& team, const std::string& fingerprint, std::int64_t done) {
  if (team.size() == 1) return;
  const std::array<std::pair<const char*, const char*>, 5> what = {{
      {"go on from other steps", "is output.folder the same for all?"},
      {"have other settings", config.parallel.shard == ShardOf::None
                                  ? "give all the same, but for memory, monitor, state and output"
                                  : "give all the same, but for memory and monitor"},
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
  if (config.parallel.shard != ShardOf::None &&
      optim::optimizer_kind(config.optimizer.kind).updates_by == optim::UpdatesBy::Matrices) {
    refuse(fmt::format("parallel.shard = \"{}\" with optimizer.kind = \"{}\"", word(config.parallel.shard),
                       config.optimizer.kind),
           "it updates whole matrices; use adamw, adamw_8bit, lion or sgd, or leave parallel.shard out");
  }
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
