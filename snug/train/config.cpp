#include "snug/train/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/nearest.h"
#include "snug/base/toml.h"
#include "snug/train/config_rules.h"

namespace snug::train {
namespace {

using nlohmann::ordered_json;
using rules::Anything;
using rules::BudgetText;
using rules::OneOf;
using rules::Range;
using rules::StrategyText;

constexpr Range kFraction{.low = 0, .high = 1, .high_excluded = true};
constexpr Range kNotNegative{.low = 0};
constexpr Range kPositive{.low = 0, .low_excluded = true};

// The one description of all keys: calls visit(section, key, member, help, rule) for each. A new key is a new line.
// The upper limits keep batch * sequence * width, in bytes, inside 63 bits.
template <class AnyConfig, class Visit>
void visit_keys(AnyConfig& c, Visit&& visit) {
  visit("model", "kind", c.model.kind, "architecture", OneOf{{"gpt"}});
  visit("model", "blocks", c.model.blocks, "transformer blocks", Range{1, 65536});
  visit("model", "width", c.model.width, "features per token, a multiple of heads", Range{1, 262144});
  visit("model", "heads", c.model.heads, "attention heads per block", Range{1, 65536});
  visit("model", "sequence", c.model.sequence, "tokens per sequence", Range{1, 1048576});
  visit("model", "vocabulary", c.model.vocabulary, "different tokens", Range{1, 16777216});
  visit("model", "dropout", c.model.dropout, "probability of dropping an activation", kFraction);
  visit("data", "path", c.data.path,
        "text file, or folder of text files; libtorch-headers: the C++ headers of the LibTorch in use", Anything{});
  visit("data", "tokenizer", c.data.tokenizer, "how text becomes tokens", OneOf{{"bytes"}});
  visit("data", "validation_fraction", c.data.validation_fraction, "share of the text kept for validation", kFraction);
  visit("train", "batch", c.train.batch, "sequences per step", Range{1, 1048576});
  visit("train", "steps", c.train.steps, "optimizer steps to run", Range{1});
  visit("train", "seed", c.train.seed, "seed of weights, dropout and data order", kNotNegative);
  visit("train", "validate_every", c.train.validate_every, "steps between validations; 0: only at the end",
        kNotNegative);
  visit("train", "validation_batches", c.train.validation_batches, "batches per validation; 0: none", kNotNegative);
  visit("train", "detect_anomaly", c.train.detect_anomaly, "stop at the operator that makes a nan; slow", Anything{});
  visit("train", "threads", c.train.threads, "CPU threads; 0: LibTorch's default", Range{0, 4096});
  visit("optimizer", "kind", c.optimizer.kind, "optimizer", OneOf{{"adamw"}});
  visit("optimizer", "learning_rate", c.optimizer.learning_rate, "highest learning rate", kPositive);
  visit("optimizer", "weight_decay", c.optimizer.weight_decay, "decoupled weight decay", kNotNegative);
  visit("optimizer", "beta1", c.optimizer.beta1, "decay of the first moment", kFraction);
  visit("optimizer", "beta2", c.optimizer.beta2, "decay of the second moment", kFraction);
  visit("optimizer", "epsilon", c.optimizer.epsilon, "added to the root of the second moment", kPositive);
  visit("optimizer", "warmup_steps", c.optimizer.warmup_steps, "steps of linear warmup", kNotNegative);
  visit("optimizer", "final_fraction", c.optimizer.final_fraction,
        "fraction of learning_rate that the cosine decays to", Range{0, 1});
  visit("optimizer", "clip_norm", c.optimizer.clip_norm, "largest norm of all gradients together; 0: off",
        kNotNegative);
  visit("precision", "compute", c.precision.compute, "type that forward and backward compute in",
        OneOf{{"fp32", "bf16"}});
  visit("memory", "budget", c.memory.budget, "memory of one step, or percent of its unplanned peak", BudgetText{});
  visit("memory", "strategy", c.memory.strategy, "how the plan is made", StrategyText{});
  visit("memory", "verify_replay_every", c.memory.verify_replay_every,
        "each so many steps, check that what is made again is what was dropped; 0: never", kNotNegative);
  visit("memory", "verify_replay_by", c.memory.verify_replay_by,
        "hashes: a difference is found to the 4 KiB; values: to the element, in memory that no budget counts",
        OneOf{{"hashes", "values"}});
  visit("output", "folder", c.output.folder, "where the metrics file goes; empty: write none", Anything{});
}

const char* type_name(const std::string&) { return "string"; }
const char* type_name(std::int64_t) { return "integer"; }
const char* type_name(double) { return "number"; }
const char* type_name(bool) { return "boolean"; }

std::optional<std::string> as(const ordered_json& json, const std::string&) {
  if (!json.is_string()) return std::nullopt;
  return json.get<std::string>();
}
std::optional<std::int64_t> as(const ordered_json& json, std::int64_t) {
  if (!json.is_number_integer()) return std::nullopt;
  // Above 63 bits, nlohmann's get would wrap round.
  const bool too_large =
      json.is_number_unsigned() && json.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()};
  if (too_large) return std::nullopt;
  return json.get<std::int64_t>();
}
std::optional<double> as(const ordered_json& json, double) {
  if (!json.is_number()) return std::nullopt;
  return json.get<double>();
}
std::optional<bool> as(const ordered_json& json, bool) {
  if (!json.is_boolean()) return std::nullopt;
  return json.get<bool>();
}

std::string show(const ordered_json& json) {
  if (json.is_number_float() && !std::isfinite(json.get<double>())) return fmt::format("{}", json.get<double>());
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string did_you_mean(std::string_view wrong, std::span<const std::string> known) {
  const std::optional<std::string> nearest = nearest_name(wrong, known);
  return nearest ? fmt::format("did you mean \"{}\"? ", *nearest) : "";
}

template <class Value, class Rule>
void check(std::string_view where, const Value& value, const Rule& rule) {
  try {
    if (keeps(rule, value)) return;
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", where, error.what()));
  }
  std::string hint;
  if constexpr (std::is_same_v<Rule, OneOf>) hint = did_you_mean(value, rule.words);
  throw UsageError(fmt::format("{} is {}; {}it must be {}", where, show(value), hint, describe(rule)));
}

// The names to choose from in messages.
std::vector<std::string> known_sections() {
  std::vector<std::string> names;
  const Config defaults;
  visit_keys(defaults, [&](const char* section, auto&&...) {
    if (names.empty() || names.back() != section) names.emplace_back(section);
  });
  return names;
}
std::vector<std::string> known_keys(std::string_view wanted_section) {
  std::vector<std::string> names;
  const Config defaults;
  visit_keys(defaults, [&](const char* section, const char* key, auto&&...) {
    if (wanted_section == section) names.emplace_back(key);
  });
  return names;
}

void expect_section(std::string_view section, std::string_view source) {
  const std::vector<std::string> sections = known_sections();
  if (std::ranges::count(sections, section) > 0) return;
  throw UsageError(fmt::format("{}: unknown section \"{}\"; {}the sections are {}", source, section,
                               did_you_mean(section, sections), fmt::join(sections, ", ")));
}

[[noreturn]] void refuse_key(std::string_view section, std::string_view key, std::string_view source) {
  const std::vector<std::string> keys = known_keys(section);
  std::string hint = did_you_mean(key, keys);
  for (const std::string& other : known_sections()) {
    const std::vector<std::string> others = known_keys(other);
    if (hint.empty() && std::ranges::count(others, key) > 0) {
      hint = fmt::format("did you mean \"{}.{}\"? ", other, key);
    }
  }
  throw UsageError(fmt::format("{}: unknown key \"{}\" in section \"{}\"; {}its keys are {}", source, key, section,
                               hint, fmt::join(keys, ", ")));
}

// Sets one key. `raw`, where there is one, is the text that `json` was read from: a string key takes it as it stands
// when it happens to look like a number.
void assign(Config& config, std::string_view section, std::string_view key, const ordered_json& json,
            std::optional<std::string_view> raw, std::string_view source) {
  expect_section(section, source);
  bool found = false;
  visit_keys(config, [&](const char* a_section, const char* a_key, auto& member, const char*, const auto& rule) {
    if (section != a_section || key != a_key) return;
    found = true;
    auto value = as(json, member);
    if constexpr (std::is_same_v<decltype(value), std::optional<std::string>>) {
      if (!value && raw && json.is_primitive()) value = std::string(*raw);
    }
    const std::string where = fmt::format("{}: {}.{}", source, section, key);
    if (!value) {
      throw UsageError(fmt::format("{} must be of type {}, but is {} ({})", where, type_name(member), show(json),
                                   json.is_structured() ? "a table or list" : json.type_name()));
    }
    check(where, *value, rule);
    member = *value;
  });
  if (!found) refuse_key(section, key, source);
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

}  // namespace

Config config_from_json(const ordered_json& json, std::string_view source) {
  if (!json.is_object()) {
    throw UsageError(fmt::format("{}: a configuration is a table of sections, but this is {}", source, show(json)));
  }
  Config config;
  for (const auto& [section, keys] : json.items()) {
    expect_section(section, source);
    if (!keys.is_object()) {
      throw UsageError(fmt::format("{}: \"{}\" is a section, but is set to {}; write [{}] and its keys below", source,
                                   section, show(keys), section));
    }
    for (const auto& [key, value] : keys.items()) assign(config, section, key, value, std::nullopt, source);
  }
  return config;
}

Config load_config(const std::filesystem::path& path) { return config_from_json(read_toml(path), path.string()); }

ordered_json to_json(const Config& config) {
  ordered_json json = ordered_json::object();
  visit_keys(config,
             [&](const char* section, const char* key, const auto& member, auto&&...) { json[section][key] = member; });
  return json;
}

void set_key(Config& config, std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  const std::string_view name = trimmed(assignment.substr(0, equals));
  const std::size_t dot = name.find('.');
  if (equals == std::string_view::npos || dot == std::string_view::npos) {
    throw UsageError(fmt::format("--set: \"{}\" is not section.key=value; write it as in train.steps=100", assignment));
  }
  const std::string_view value = trimmed(assignment.substr(equals + 1));
  assign(config, name.substr(0, dot), name.substr(dot + 1), parse_toml_value(value), value, "--set");
}

void validate(const Config& config) {
  visit_keys(config, [](const char* section, const char* key, const auto& member, const char*, const auto& rule) {
    check(fmt::format("configuration: {}.{}", section, key), member, rule);
  });
  const ModelConfig& model = config.model;
  if (model.width % model.heads != 0) {
    throw UsageError(fmt::format("configuration: model.width = {} is not divisible by model.heads = {}; use {} or {}",
                                 model.width, model.heads,
                                 std::max(model.width / model.heads, std::int64_t{1}) * model.heads,
                                 (model.width / model.heads + 1) * model.heads));
  }
  if (config.data.tokenizer == "bytes" && model.vocabulary < 256) {
    throw UsageError(
        fmt::format("configuration: model.vocabulary = {} is too small for data.tokenizer = \"bytes\", "
                    "which has 256 tokens; set it to 256",
                    model.vocabulary));
  }
  if (config.train.validate_every > 0 && config.train.validation_batches == 0) {
    throw UsageError(
        fmt::format("configuration: train.validate_every = {} but train.validation_batches = 0; set "
                    "both or neither",
                    config.train.validate_every));
  }
}

std::vector<KeyHelp> config_keys() {
  std::vector<KeyHelp> keys;
  const Config defaults;
  visit_keys(defaults,
             [&](const char* section, const char* key, const auto& member, const char* help, const auto& rule) {
               const std::string limits = describe(rule);
               keys.push_back({.key = fmt::format("{}.{}", section, key),
                               .type = type_name(member),
                               .default_text = show(member),
                               .help = limits.empty() ? help : fmt::format("{} ({})", help, limits)});
             });
  return keys;
}

BudgetRequest parse_budget(std::string_view text) {
  const std::string_view budget = trimmed(text);
  if (budget.empty()) return std::monostate{};
  if (budget.back() == '%') {
    const std::string_view number = trimmed(budget.substr(0, budget.size() - 1));
    double percent = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), percent);
    const bool whole = error == std::errc{} && end == number.data() + number.size();
    if (whole && percent > 0 && percent <= 100) return Percent{percent};
    throw UsageError(fmt::format("budget: \"{}\" is not a percentage above 0 and up to 100; write it as in 60%", text));
  }
  const Bytes bytes = parse_bytes(budget);
  if (bytes > 0) return bytes;
  throw UsageError(
      fmt::format("budget: \"{}\" leaves no memory at all; give more than 0 bytes, or leave it empty for "
                  "no budget",
                  text));
}

}  // namespace snug::train
