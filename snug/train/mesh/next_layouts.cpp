#include "snug/train/mesh/next_layouts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "snug/plan/run/pipeline_schedule.h"
#include "snug/train/config.h"
#include "snug/train/config_applies.h"
#include "snug/train/team_layout.h"

namespace snug::train {
namespace {

bool is_set(const Config& config, std::string_view key) { return config.given.contains(key); }

/// The next number of micro-batches behind `from`, whatever its schedule needs; nullopt: there is none.
std::optional<Config> with_more_micro_batches(Config config, const Devices& devices, std::int64_t from) {
  const std::int64_t replicas = replicas_of(config, devices), pipeline = config.parallel.pipeline;
  const bool in_rounds = pipeline > 1 && plan::chunks_of(plan::pipeline_schedule_from(config.parallel.schedule)) > 1;
  for (std::int64_t count = from + 1; count * replicas <= config.train.batch; ++count) {
    if (config.train.batch % (replicas * count) != 0 || (in_rounds && count % pipeline != 0)) continue;
    config.train.accumulate = count;
    return config;
  }
  return std::nullopt;
}

std::optional<Config> first_with(const Config& asked, const Devices& devices, const TeamLayout& layout) {
  Config config = asked;
  ParallelConfig& p = config.parallel;
  const auto differs = [&](std::string_view key, std::int64_t set, std::int64_t now) {
    return is_set(asked, key) && set != now;
  };
  if (differs("parallel.tensor", p.tensor, layout.tensor) || differs("parallel.context", p.context, layout.context) ||
      differs("parallel.pipeline", p.pipeline, layout.pipeline))
    return std::nullopt;
  // What is set is to do something.
  if ((layout.pipeline == 1 && is_set(asked, "parallel.schedule")) ||
      (layout.tensor == 1 && is_set(asked, "parallel.sequence_parallel")) ||
      (layout.context == 1 && is_set(asked, "parallel.context_by")))
    return std::nullopt;
  if (!is_set(asked, "parallel.tensor") && devices.links.per_machine % layout.tensor != 0) return std::nullopt;
  if (is_set(asked, "parallel.shard_degree") && !is_set(asked, "parallel.shard")) p.shard = ShardOf::Optimizer;
  p.tensor = layout.tensor;
  p.context = layout.context;
  p.pipeline = layout.pipeline;
  if (!is_set(asked, "parallel.sequence_parallel"))
    p.sequence_parallel = layout.tensor > 1 && config.model.sequence % layout.tensor == 0;
  if (is_set(asked, "train.accumulate")) return config;
  return with_more_micro_batches(config, devices, layout.pipeline - 1);
}

std::optional<Config> with_more_shards(Config config, const Devices& devices) {
  ParallelConfig& p = config.parallel;
  const bool are_alike = replicas_of(config, devices) * p.context > 1,
             is_last = p.shard == (p.pipeline > 1 ? ShardOf::Gradients : ShardOf::Parameters);
  if (!are_alike || is_last) return std::nullopt;
  p.shard = static_cast<ShardOf>(static_cast<unsigned char>(p.shard) + 1);
  return config;
}

/// Shards within a machine, of which others have the same.
std::optional<Config> with_shards_in_machines(Config config, const Devices& devices) {
  const std::int64_t of_replica = layout_of(config.parallel).per_replica(),
                     within = devices.links.per_machine / of_replica;
  ParallelConfig& p = config.parallel;
  if (p.shard_degree != 0 || devices.links.per_machine % of_replica != 0 || within < 2 ||
      within >= replicas_of(config, devices))
    return std::nullopt;
  if (p.shard == ShardOf::None) p.shard = ShardOf::Optimizer;  // those of all may be slower than none
  p.shard_degree = within;
  return config;
}

std::optional<Config> with_a_ring(Config config) {
  ParallelConfig& p = config.parallel;
  if (p.context == 1 || p.context_by == models::ContextMethod::Ring || config.model.sequence % (2 * p.context) != 0)
    return std::nullopt;
  p.context_by = models::ContextMethod::Ring;
  return config;
}

std::optional<Config> with_optimizer_on_host(Config config) {
  if (config.memory.weights == KeptIn::Streamed || config.memory.optimizer == KeptIn::Streamed ||
      why_not_streamed(config))
    return std::nullopt;
  config.memory.optimizer = KeptIn::Streamed;
  return config;
}

std::optional<Config> with_more_stages(Config config, std::int64_t blocks) {
  ParallelConfig& p = config.parallel;
  if (p.pipeline == 1) return std::nullopt;
  const int chunks = 2 * plan::chunks_of(plan::pipeline_schedule_from(p.schedule));
  if (chunks * p.pipeline > blocks || config.train.accumulate % p.pipeline != 0) return std::nullopt;
  p.schedule = plan::name_of(plan::Interleaved{chunks});
  return config;
}

}  // namespace

std::int64_t replicas_of(const Config& config, const Devices& devices) {
  return devices.count / layout_of(config.parallel).per_replica();
}

std::vector<Config> first_layouts(const Config& config, const Devices& devices) {
  std::vector<Config> all;
  for (int tensor = 1; tensor <= devices.count; ++tensor) {
    for (int context = 1; context * tensor <= devices.count; ++context) {
      if (tensor > 1 && context > 1) break;  // these do not go together
      for (int pipeline = 1; pipeline * context * tensor <= devices.count; ++pipeline) {
        if (devices.count % (tensor * context * pipeline) != 0) continue;
        const TeamLayout layout{.tensor = tensor, .context = context, .pipeline = pipeline};
        if (auto first = first_with(config, devices, layout)) all.push_back(*std::move(first));
      }
    }
  }
  return all;
}

std::vector<Further> ways_further(const Config& config, const Devices& devices) {
  std::vector<Further> all;
  if (!is_set(config, "parallel.shard")) {
    all.emplace_back(
        [devices](const Config& from, std::int64_t /*blocks*/) { return with_more_shards(from, devices); });
  }
  if (!is_set(config, "train.accumulate")) {
    all.emplace_back([devices](const Config& from, std::int64_t /*blocks*/) {
      return with_more_micro_batches(from, devices, from.train.accumulate);
    });
  }
  if (!is_set(config, "parallel.schedule")) {
    all.emplace_back([](const Config& from, std::int64_t blocks) { return with_more_stages(from, blocks); });
  }
  if (devices.links.per_machine < devices.count && !is_set(config, "parallel.shard_degree")) {
    all.emplace_back(
        [devices, may_shard = !is_set(config, "parallel.shard")](const Config& from, std::int64_t /*blocks*/) {
          const bool has_shards = may_shard || from.parallel.shard != ShardOf::None;
          return has_shards ? with_shards_in_machines(from, devices) : std::nullopt;
        });
  }
  if (!is_set(config, "parallel.context_by"))
    all.emplace_back([](const Config& from, std::int64_t /*blocks*/) { return with_a_ring(from); });
  if (!is_set(config, "memory.optimizer"))
    all.emplace_back([](const Config& from, std::int64_t /*blocks*/) { return with_optimizer_on_host(from); });
  return all;
}

std::string layout_in_words(const Config& config, const Devices& devices) {
  const ParallelConfig& p = config.parallel;
  std::vector<std::string> parts;
  if (p.tensor > 1) parts.push_back(fmt::format("tensor {}{}", p.tensor, p.sequence_parallel ? " with sequences" : ""));
  if (p.context > 1) {
    parts.push_back(fmt::format("context {}", p.context));
    if (p.context_by == models::ContextMethod::Ring) parts.back() += " in a ring";
  }
  if (p.pipeline > 1) parts.push_back(fmt::format("pipeline {} {}", p.pipeline, p.schedule));
  if (const std::int64_t replicas = replicas_of(config, devices); replicas > 1)
    parts.push_back(fmt::format("data {}", replicas));
  if (p.shard != ShardOf::None) {
    parts.push_back(fmt::format("{} in shards", word(p.shard)));
    if (p.shard_degree > 0) parts.back() += fmt::format(" of {}", p.shard_degree);
  }
  if (config.memory.optimizer == KeptIn::Streamed) parts.emplace_back("optimizer on the host");
  if (config.train.accumulate > 1) parts.push_back(fmt::format("{} micro-batches", config.train.accumulate));
  return parts.empty() ? "one process" : fmt::format("{}", fmt::join(parts, ", "));
}

std::vector<std::string> settings_between(const Config& from, const Config& to) {
  const nlohmann::ordered_json before = to_json(from), now = to_json(to);
  std::vector<std::string> settings;
  const auto add = [&](const std::string& section, const std::string& key) {
    const nlohmann::ordered_json& value = now.at(section).at(key);
    if (before.at(section).at(key) == value) return;
    settings.push_back(
        fmt::format("{}.{}={}", section, key, value.is_string() ? value.get<std::string>() : value.dump()));
  };
  for (const auto& [key, value] : now.at("parallel").items()) add("parallel", key);
  add("memory", "optimizer");
  add("train", "accumulate");
  add("train", "threads");
  return settings;
}

}  // namespace snug::train
