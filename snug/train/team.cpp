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
#include "snug/models/context_parts.h"
#include "snug/parallel/launch.h"
#include "snug/parallel/tensor_group.h"
#include "snug/replay/agreement.h"
#include "snug/train/config.h"
#include "snug/train/interrupt.h"
#include "snug/train/parallel_rules.h"
#include "snug/train/precision.h"

namespace snug::train {
namespace {

constexpr std::uint8_t kStops = 1, kSaves = 2;

/// Whether it stops or saves, its losses, and its generator's state, of which all have the same numbers.
at::Tensor as_bytes(const Team::Word& word) {
  const std::size_t losses = word.losses.size() * sizeof(double);
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(1 + losses + word.random.size())}, at::kByte);
  auto* const at = bytes.mutable_data_ptr<std::uint8_t>();
  at[0] = static_cast<std::uint8_t>((word.stops ? kStops : 0) | (word.saves ? kSaves : 0));
  std::memcpy(at + 1, word.losses.data(), losses);
  std::ranges::copy(word.random, at + 1 + losses);
  return bytes;
}

Team::Word word_of(const at::Tensor& bytes, std::size_t losses) {
  Team::Word word;
  const auto* const at = bytes.const_data_ptr<std::uint8_t>();
  word.stops = (at[0] & kStops) != 0;
  word.saves = (at[0] & kSaves) != 0;
  word.losses.resize(losses);
  std::memcpy(word.losses.data(), at + 1, losses * sizeof(double));
  word.random.assign(at + 1 + losses * sizeof(double), at + bytes.numel());
  return word;
}

/// What is smaller stays whole in each process: gathering it takes longer than it is worth.
constexpr Bytes kSmallestDivided = 64_KiB;

double hash_of(std::string_view text) {
  return replay::as_number(hash_64(std::as_bytes(std::span(text.data(), text.size()))));
}

/// What each process may have its own way.
nlohmann::ordered_json settings_of(const Config& config) {
  nlohmann::ordered_json all = to_json(config);
  for (const char* const section : {"memory", "monitor"}) all.erase(section);
  // A folder may have another name on each machine; all take part in saving.
  if (!saves_together(config)) {
    all["state"] = {{"every", config.state.every}, {"interval", config.state.interval}};
    all["output"] = {{"folder", !config.output.folder.empty()}};
  }
  all["train"].erase("threads");
  all["parallel"].erase("timeout");
  all["precision"]["compute"] = word(computed_in(config));  // what "auto" is on this machine
  return all;
}

/// The first key that is not the same in both.
std::string first_difference(const nlohmann::ordered_json& first, const nlohmann::ordered_json& other, int rank) {
  const auto show = [](const nlohmann::ordered_json& all, const std::string& key) {
    return all.contains(key) ? all.at(key).dump() : std::string("left out");
  };
  const nlohmann::ordered_json here = first.flatten(), there = other.flatten();
  for (const auto* const all : {&here, &there}) {
    for (const auto& one : all->items()) {
      const std::string &key = one.key(), is = show(here, key), is_there = show(there, key);
      if (is == is_there) continue;
      std::string name = key.substr(1);
      std::ranges::replace(name, '/', '.');
      return fmt::format("{} is {} in the process of rank 0, and {} in that of rank {}; give all the same", name, is,
                         is_there, rank);
    }
  }
  throw std::logic_error("first_difference: there is none");
}

constexpr std::int64_t kSequence = 1;  // the dimension of (batch, sequence)

}  // namespace

TeamLayout layout_of(const ParallelConfig& config) {
  return {.tensor = static_cast<int>(config.tensor),
          .context = static_cast<int>(config.context),
          .context_by = config.context_by,
          .pipeline = static_cast<int>(config.pipeline),
          .between = config.sequence_parallel       ? models::Between::Sequences
                     : config.partition_activations ? models::Between::KeptInParts
                                                    : models::Between::Whole,
          .shard_degree = config.shard == ShardOf::None ? 0 : static_cast<int>(config.shard_degree)};
}

Team::Team(std::shared_ptr<parallel::World> world, const TeamLayout& layout)
    : world_(std::move(world)), layout_(layout) {
  constexpr std::array kKeys = {"parallel.tensor", "parallel.context", "parallel.pipeline", "parallel.shard_degree"};
  const std::vector<double> all =
      gather({static_cast<double>(layout.tensor), static_cast<double>(layout.context),
              static_cast<double>(layout.pipeline), static_cast<double>(layout.shard_degree)});
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] == all[i % kKeys.size()]) continue;
    throw UsageError(
        fmt::format("train: {} is {:.0f} in the process of rank 0, and {:.0f} in that of rank {}; give all "
                    "the same",
                    kKeys.at(i % kKeys.size()), all[i % kKeys.size()], all[i], i / kKeys.size()));
  }
  if (size() % layout.per_replica() != 0) {
    throw UsageError(
        fmt::format("train: {} processes, and {}; start a multiple of {} of them (torchrun --no-python "
                    "--nproc-per-node {} snug train ...)",
                    size(), parts_in_words(layout), layout.per_replica(), layout.per_replica()));
  }
  if (replicas() % shard_degree() != 0) {
    throw UsageError(fmt::format(
        "train: parallel.shard_degree = {}, and {} replicas of the model; set it to a number that divides them",
        layout.shard_degree, replicas()));
  }
  mesh_ = std::make_shared<parallel::Mesh>(world_, std::vector<parallel::Mesh::Axis>{{"copy", copies()},
                                                                                     {"data", shard_degree()},
                                                                                     {"pipeline", layout.pipeline},
                                                                                     {"context", layout.context},
                                                                                     {"tensor", layout.tensor}});
  if (layout.tensor > 1) layers_ = parallel::tensor_group(mesh_->group({"tensor"}));
  if (layout.context > 1) sequences_ = parallel::tensor_group(mesh_->group({"context"}));
}

std::shared_ptr<parallel::ProcessGroup> Team::pipeline() const {
  return layout_.pipeline > 1 ? mesh_->group({"pipeline"}) : nullptr;
}

std::shared_ptr<Agreement> Team::agreement() const { return size() > 1 ? world_->agreement() : alone(); }

std::vector<parallel::DividedParameter> Team::divide(const std::vector<at::Tensor>& parameters,
                                                     StreamedTensors& streamed, KeptIn shards) const {
  const std::shared_ptr<parallel::ProcessGroup> group = sharers();
  parallel::StreamShard stream;
  if (shards == KeptIn::Streamed) stream = [&](const at::Tensor& shard) { streamed.add({shard}); };
  auto divided = parallel::divide(
      parameters, *world_, group, kSmallestDivided,
      [&](const at::Tensor& parameter, std::unique_ptr<memory::ContentsRoom> room) {
        streamed.add_with_room(parameter, std::move(room));
      },
      stream);
  const c10::Device device = parameters.empty() ? c10::Device(c10::kCPU) : parameters.front().device();
  streamed.set_cost(parallel::measured_gather_cost(*world_, group, stream, device));
  return divided;
}

Team Team::of_launcher(const Config& config) {
  const auto launched = parallel::launched();
  const TeamLayout layout = layout_of(config.parallel);
  if (!launched) {
    if (layout.per_replica() == 1) return {};
    throw UsageError(
        fmt::format("train: {}, and this process is alone; start it with others, as by torchrun "
                    "--no-python --nproc-per-node {} snug train ...",
                    parts_in_words(layout), layout.per_replica()));
  }
  const std::chrono::duration<double> timeout(config.parallel.timeout);
  return Team(parallel::World::meet(*launched, {.timeout = std::chrono::ceil<std::chrono::milliseconds>(timeout)}),
              layout);
}

std::unique_ptr<TeamGradients> Team::gradients(const std::vector<at::Tensor>& trained, const Held& held,
                                               const Config& config, std::vector<parallel::DividedParameter> divided,
                                               std::function<void(const at::Tensor&)> arrived) const {
  if (size() == 1) return nullptr;
  parallel::DataParallelOptions options{.combine = parallel::DataParallelOptions::Combine::Sum};
  if (config.parallel.reduce == ReduceIn::Fp32) options.reduce_in = at::kFloat;
  if (config.parallel.reduce == ReduceIn::Bf16) options.reduce_in = at::kBFloat16;
  if (config.parallel.shard != ShardOf::None) options.leaves = parallel::DataParallelOptions::Leaves::Shards;
  options.divided = std::move(divided);
  options.arrived = std::move(arrived);
  // Parts apart: shards of what is whole in a layer group are the same in all of it.
  std::vector<TeamGradients::Sum> sums(4);
  enum : std::size_t { Wholes, Parts, Summands, Shared };
  for (const at::Tensor& one : trained) {
    const std::size_t which = models::is_among(held.shared, one)            ? Shared
                              : models::is_among(held.summands, one)        ? Summands
                              : models::part_of(held.parts, one) != nullptr ? Parts
                                                                            : Wholes;
    sums[which].parameters.push_back(one);
  }
  sums[Wholes].over = sums[Parts].over = sharers();
  sums[Summands].over = mesh_->group({"data", "context", "tensor"});
  if (!sums[Shared].parameters.empty()) sums[Shared].over = ends_of_pipelines();
  for (TeamGradients::Sum& sum : sums) sum.copies = mesh_->group({"copy"});
  return std::make_unique<TeamGradients>(trained, sums, options);
}

std::shared_ptr<parallel::ProcessGroup> Team::sharers() const { return mesh_->group({"data", "context"}); }

std::shared_ptr<parallel::ProcessGroup> Team::ends_of_pipelines() const {
  const int stage = layout_.context * layout_.tensor, tensor = mesh_->at("tensor");
  std::vector<int> ranks;
  const int of_copy = shard_degree() * layout_.per_replica(), begin = mesh_->at("copy") * of_copy;
  for (int first = begin; first < begin + of_copy; first += layout_.per_replica()) {
    for (const int begins : {first, first + layout_.per_replica() - stage}) {
      for (int context = 0; context < layout_.context; ++context)
        ranks.push_back(begins + context * layout_.tensor + tensor);
    }
  }
  return world_->group(ranks);
}

void Team::copy_from_first(const std::vector<at::Tensor>& tensors) const {
  if (size() > 1) parallel::copy_from_first(*world_->all(), tensors);
}

std::vector<MicroBatch> Team::part_of(const data::Batch& batch, std::int64_t accumulate) const {
  const std::int64_t parts = replicas() * accumulate;
  std::vector<MicroBatch> all = micro_batches(batch, parts);
  if (replicas() == 1 && layout_.pipeline == 1) return all;
  if (static_cast<std::int64_t>(all.size()) < parts) {
    throw UsageError(
        fmt::format("train: of the {} parts of a batch for {} processes, {} have no target; use a larger train.batch, "
                    "or fewer of them",
                    parts, size(), parts - static_cast<std::int64_t>(all.size())));
  }
  if (replicas() == 1) return all;
  std::vector<MicroBatch> mine;
  for (std::int64_t i = replica(); i < parts; i += replicas())
    mine.push_back(std::move(all[static_cast<std::size_t>(i)]));
  return mine;
}

data::Batch Team::part_of_sequences(data::Batch batch) const {
  if (layout_.context == 1) return batch;
  for (at::Tensor* const tensor : tensors_of(batch)) {
    *tensor = models::take_pieces(
        *tensor, kSequence,
        models::pieces_of(layout_.context_by, tensor->size(kSequence), mesh_->at("context"), layout_.context));
  }
  return batch;
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

optim::OtherParts Team::parts_over(const std::shared_ptr<parallel::ProcessGroup>& group) const {
  if (group->size() == 1) return {};
  const auto together = [group](parallel::Reduce how) {
    return [group, how](std::span<std::int64_t> numbers) {
      group->run(parallel::AllReduce{
          at::from_blob(numbers.data(), {static_cast<std::int64_t>(numbers.size())}, at::kLong), how});
    };
  };
  return {.add_up = together(parallel::Reduce::Sum), .largest = together(parallel::Reduce::Max)};
}

optim::OtherParts Team::all_shards() const {
  return mesh_ ? parts_over(mesh_->group({"data", "pipeline", "context", "tensor"})) : optim::OtherParts();
}
optim::OtherParts Team::parts_of_replica() const {
  return mesh_ ? parts_over(mesh_->group({"pipeline", "tensor"})) : optim::OtherParts();
}

bool Team::interrupted_anywhere() const { return std::ranges::count(gather({interrupted() ? 1.0 : 0.0}), 1.0) > 0; }

void check_same_settings(const Config& config, const Team& team) {
  if (team.size() == 1) return;
  const std::string mine = settings_of(config).dump();
  const std::vector<double> hashes = team.gather({hash_of(mine)});
  if (std::ranges::count(hashes, hashes.front()) == team.size()) return;
  const std::vector<std::string> all = team.gather_texts(mine);
  const auto other = std::ranges::find_if(all, [&](const std::string& one) { return one != all.front(); });
  throw UsageError("train: " + first_difference(nlohmann::ordered_json::parse(all.front()),
                                                nlohmann::ordered_json::parse(*other),
                                                static_cast<int>(other - all.begin())));
}

void check_same_in_team(const Team& team, const std::string& fingerprint, std::int64_t done, c10::Device device) {
  if (team.size() == 1) return;
  const std::array<std::pair<const char*, const char*>, 4> what = {{
      {"go on from other steps", "is output.folder the same for all?"},
      {"have other data or another pretrained model", "give all the same files"},
      {"have other numbers of threads, and so other bits", "set train.threads"},
      {"have other vector instructions, and so other bits", "set ATEN_CPU_CAPABILITY to what all have"},
  }};
  const bool on_cpu = device.is_cpu();
  const std::vector<double> all = team.gather({static_cast<double>(done), hash_of(fingerprint),
                                               on_cpu ? static_cast<double>(at::get_num_threads()) : 0.0,
                                               on_cpu ? hash_of(at::get_cpu_capability()) : 0.0});
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] == all[i % what.size()]) continue;
    const auto& [differ, cure] = what.at(i % what.size());
    throw UsageError(fmt::format("train: the processes of rank 0 and {} {}; {}", i / what.size(), differ, cure));
  }
}

}  // namespace snug::train
