#include "snug/train/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <utility>

#include "snug/base/comma_list.h"
#include "snug/base/errors.h"
#include "snug/base/nearest.h"
#include "snug/base/read_at.h"
#include "snug/base/toml.h"
#include "snug/data/token_file.h"
#include "snug/train/parallel_rules.h"

namespace snug::train {
namespace {

using nlohmann::ordered_json;
using rules::describe;
using rules::keeps;
using rules::words_of;

template <class T>
concept Choice = std::is_enum_v<T>;
using BudgetValue = std::optional<plan::BudgetRequest>;

const char* type_name(const std::string&) { return "string"; }
const char* type_name(const BudgetValue&) { return "string"; }
const char* type_name(Choice auto) { return "string"; }
const char* type_name(std::int64_t) { return "integer"; }
const char* type_name(double) { return "number"; }
const char* type_name(bool) { return "boolean"; }

std::optional<std::string> as(const ordered_json& json, const std::string&) {
  if (!json.is_string()) return std::nullopt;
  return json.get<std::string>();
}
/// Above 63 bits nlohmann's get would wrap round; what fits into no integer at all is read as a string.
bool is_beyond_int(const ordered_json& json) {
  if (json.is_number_unsigned())
    return json.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()};
  if (!json.is_string()) return false;
  const auto& text = json.get_ref<const std::string&>();
  const std::size_t digits = text.starts_with('-') ? 1 : 0;
  return text.size() > digits + 18 && text.find_first_not_of("0123456789", digits) == std::string::npos;
}
std::optional<std::int64_t> as(const ordered_json& json, std::int64_t) {
  if (!json.is_number_integer() || is_beyond_int(json)) return std::nullopt;
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

// The value as JSON has it.
template <class Value>
ordered_json json_of(const Value& value) {
  if constexpr (Choice<Value>) {
    return std::string(word(value));
  } else if constexpr (std::is_same_v<Value, BudgetValue>) {
    return plan::to_text(value);
  } else {
    return value;
  }
}

std::string show(const ordered_json& json) {
  if (json.is_number_float() && !std::isfinite(json.get<double>())) return fmt::format("{}", json.get<double>());
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

template <class Value, class Rule>
void check(std::string_view where, const Value& value, const Rule& rule) {
  if (read_at(where, [&] { return keeps(rule, value); })) return;
  std::string finite;
  if constexpr (std::is_floating_point_v<Value>) finite = std::isfinite(value) ? "" : "a finite number, ";
  throw UsageError(fmt::format("{} is {}; it must be {}{}", where, show(json_of(value)), finite, describe(rule)));
}

/// Of a rule that is a list of words.
template <class Rule>
concept Words = requires(const Rule& rule) {
  words_of(rule);
};

template <Words Rule>
void check_word(std::string_view where, const std::string& text, const Rule& rule) {
  const std::vector<std::string> words = words_of(rule);
  if (std::ranges::count(words, text) > 0) return;
  throw UsageError(
      fmt::format("{} is {}; {}it must be {}", where, show(text), did_you_mean(text, words), describe(rule)));
}

// The names to choose from in messages.
std::vector<std::string> known_sections() {
  std::vector<std::string> names;
  const Config defaults;
  visit_keys(defaults, [&](const KeyAbout& key, auto&&...) {
    if (names.empty() || names.back() != key.section) names.push_back(key.section);
  });
  return names;
}
std::vector<std::string> known_keys(std::string_view section) {
  std::vector<std::string> names;
  const Config defaults;
  visit_keys(defaults, [&](const KeyAbout& key, auto&&...) {
    if (key.section == section) names.push_back(key.name);
  });
  return names;
}

void expect_section(std::string_view section, std::string_view source) {
  const std::vector<std::string> sections = known_sections();
  if (std::ranges::count(sections, section) > 0) return;
  throw UsageError(fmt::format("{}: unknown section \"{}\"; {}the sections are {}", source, section,
                               did_you_mean(section, sections), fmt::join(sections, ", ")));
}

void expect_keys(std::string_view section, const ordered_json& keys, std::string_view source) {
  expect_section(section, source);
  if (!keys.is_object())
    throw UsageError(fmt::format("{}: \"{}\" is a section, but is set to {}; write [{}] and its keys below", source,
                                 section, show(keys), section));
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
  visit_keys(config, [&](const KeyAbout& about, auto& member, const auto& rule) {
    if (section != about.section || key != about.name) return;
    found = true;
    using Member = std::remove_cvref_t<decltype(member)>;
    constexpr bool kIsBudget = std::is_same_v<Member, BudgetValue>;
    using Written = std::conditional_t<Choice<Member> || kIsBudget, std::string, Member>;
    auto value = as(json, Written());
    if constexpr (std::is_same_v<Written, std::string>) {
      if (!value && raw && json.is_primitive()) value = std::string(*raw);
    }
    const std::string where = fmt::format("{}: {}.{}", source, section, key);
    if (!value) {
      const bool quotes_help = std::is_same_v<Written, std::string> && json.is_primitive() && !json.is_null();
      throw UsageError(fmt::format("{} must be of type {}, but is {} ({}){}", where, type_name(member), show(json),
                                   json.is_structured()  ? "a table or list"
                                   : is_beyond_int(json) ? "an integer beyond 63 bits"
                                                         : json.type_name(),
                                   quotes_help ? fmt::format("; write \"{}\"", show(json)) : ""));
    }
    if constexpr (Words<decltype(rule)>) check_word(where, *value, rule);
    if constexpr (Choice<Member>) {
      member = *choice_named<Member>(*value);
    } else if constexpr (kIsBudget) {
      member = read_at(where, [&] { return plan::parse_budget(*value); });
    } else {
      check(where, *value, rule);
      member = *value;
    }
  });
  if (!found) refuse_key(section, key, source);
  config.given.insert(fmt::format("{}.{}", section, key));
}

/// Whether a word of before asks for what the present one does.
template <class Value, class Rule>
bool means_the_same(const nlohmann::json& was, const Value& is, const Rule& rule, const Config& now) {
  if constexpr (requires { rule.same; } && Choice<Value>) {
    const auto before = was.is_string() ? choice_named<Value>(was.get<std::string>()) : std::nullopt;
    return before && rule.same != nullptr && rule.same(*before, is, now);
  } else if constexpr (requires { rule.same(is, is, now); }) {
    return was.is_string() && rule.same(was.get<std::string>(), is, now);
  }
  return false;
}

}  // namespace

Config config_from_json(const ordered_json& json, std::string_view source) {
  return known_part(json, source, [](const std::string& why) { throw UsageError(why); });
}

Config known_part(const ordered_json& json, std::string_view source,
                  const std::function<void(const std::string&)>& left_out) {
  if (!json.is_object())
    throw UsageError(fmt::format("{}: a configuration is a table of sections, but this is {}", source, show(json)));
  Config config;
  const auto attempt = [&](const auto& read) {
    try {
      read();
      return true;
    } catch (const UsageError& error) {
      left_out(error.what());
      return false;
    }
  };
  for (const auto& [section, keys] : json.items()) {
    if (!attempt([&, &section = section, &keys = keys] { expect_keys(section, keys, source); })) continue;
    for (const auto& each : keys.items())
      attempt([&, &section = section] { assign(config, section, each.key(), each.value(), std::nullopt, source); });
  }
  return config;
}

Config load_config(const std::filesystem::path& path) { return config_from_json(read_toml(path), path.string()); }

ordered_json to_json(const Config& config) {
  ordered_json json = ordered_json::object();
  visit_keys(config, [&](const KeyAbout& key, const auto& member, auto&&...) {
    json[key.section][key.name] = json_of(member);
  });
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

namespace {

void validate_model(const Config& config) {
  const ModelConfig& model = config.model;
  const ModelFamily& family = model_family(model.kind);
  if (config.state.every > 0 && config.output.folder.empty()) {
    throw UsageError(
        fmt::format("configuration: state.every = {}, but output.folder is empty, so that no state is saved; "
                    "set both or neither",
                    config.state.every));
  }
  if (config.train.batch % config.train.accumulate != 0) {
    throw UsageError(fmt::format(
        "configuration: train.accumulate = {} does not divide train.batch = {}, whose sequences it makes micro-batches "
        "of; set train.batch to a multiple, such as {}",
        config.train.accumulate, config.train.batch,
        (config.train.batch / config.train.accumulate + 1) * config.train.accumulate));
  }
  validate_parallel(config);
  if (const auto why = why_not_in_backward(config); why && config.optimizer.in_backward)
    throw UsageError("configuration: optimizer.in_backward = true, but " + *why);
  if (const auto why = why_not_streamed(config); why && config.memory.weights == KeptIn::Streamed)
    throw UsageError("configuration: memory.weights = \"streamed\", but " + *why);
  if (const auto why = why_not_streamed(config); why && config.memory.optimizer == KeptIn::Streamed)
    throw UsageError("configuration: memory.optimizer = \"streamed\", but " + *why);
  if (const auto why = why_not_lossy(config); why && config.memory.activations != Activations::Exact)
    throw UsageError(
        fmt::format("configuration: memory.activations = \"{}\", but {}", word(config.memory.activations), *why));
  if (config.precision.weights == TrainedWeights::Bf16 && computed_in(config) != Compute::Bf16) {
    throw UsageError(fmt::format(
        "configuration: precision.weights = \"bf16\", but precision.compute = \"{}\"{}, which bf16 has no more bits "
        "for; set precision.compute to \"bf16\"",
        word(config.precision.compute),
        config.precision.compute == Compute::Auto ? ", which is fp32 on this machine" : ""));
  }
  if (model.weights == BaseWeights::Bf16 && config.precision.compute == Compute::Fp32 &&
      config.given.contains("precision.compute")) {
    throw UsageError(
        "configuration: precision.compute = \"fp32\" does nothing beside model.weights = \"bf16\", whose products are "
        "in "
        "bf16; leave it out, or set model.weights to \"fp32\" or \"packed\"");
  }
  if (!model.path.empty()) {  // its files decide
    if (family.open == nullptr) {
      throw UsageError(
          fmt::format("configuration: model.path is set and model.kind is \"{}\"; pretrained models are of the kind {}",
                      model.kind, families_with_files()));
    }
    return;
  }
  if (family.check != nullptr) family.check(model);
  const bool of_bytes = config.data.tokenizer == "bytes" || config.data.tokenizer == "auto";
  if (of_bytes && !data::is_token_file(config.data.path) && model.vocabulary < 256) {
    throw UsageError(
        fmt::format("configuration: model.vocabulary = {} is too small for data.tokenizer = \"bytes\", "
                    "which has 256 tokens; set it to 256",
                    model.vocabulary));
  }
  if (model.weights != BaseWeights::Fp32) {
    throw UsageError(fmt::format("configuration: model.weights = \"{}\" is for pretrained models; set model.path",
                                 word(model.weights)));
  }
}

/// Zero, no text and "auto" ask for nothing.
template <class Value>
bool asks(const Value& value) {
  if constexpr (Choice<Value>) return true;
  if constexpr (std::is_same_v<Value, std::string>) return !value.empty() && value != "auto";
  return value != Value();
}

/// A key that was set and does nothing is a mistake about what the run will do.
void validate_given(const Config& config) {
  const ordered_json defaults = to_json(Config{});
  visit_keys(config, [&](const KeyAbout& key, const auto& member, const auto&) {
    const std::string name = fmt::format("{}.{}", key.section, key.name);
    const bool set = config.given.contains(name) || json_of(member) != defaults[key.section][key.name];
    if (!set || !asks(member)) return;
    if (const Applies& applies = key.applies; applies.with(config)) {
      const bool part_is_off = applies.part_of && !applies.part_of->on(config);
      if (!part_is_off || config.given.contains(applies.part_of->key)) return;
    }
    throw UsageError(fmt::format("configuration: {} = {} does nothing here: it applies {}; leave it out", name,
                                 show(json_of(member)), key.applies.when));
  });
}

}  // namespace

void validate(const Config& config) {
  try {
    (void)to_json(config).dump();
  } catch (const nlohmann::json::exception&) {
    throw UsageError("configuration: a text in it is not UTF-8, which files of JSON cannot hold; rename that file");
  }
  visit_keys(config, [](const KeyAbout& key, const auto& member, const auto& rule) {
    check(fmt::format("configuration: {}.{}", key.section, key.name), member, rule);
  });
  validate_model(config);
  validate_given(config);
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
  visit_keys(defaults, [&](const KeyAbout& key, const auto& member, const auto& rule) {
    const std::string limits = describe(rule);
    keys.push_back({.key = fmt::format("{}.{}", key.section, key.name),
                    .type = type_name(member),
                    .default_text = show(json_of(member)),
                    .help = limits.empty() ? key.help : fmt::format("{} ({})", key.help, limits),
                    .resumed = key.resumed,
                    .commands = key.applies.commands});
  });
  return keys;
}

std::vector<std::string> changed_when_resumed(const nlohmann::json& before, const Config& now) {
  std::vector<std::string> changed;
  const auto value_of = [](const nlohmann::json& config, const KeyAbout& key) {
    const bool there = config.contains(key.section) && config[key.section].contains(key.name);
    return there ? config[key.section][key.name] : nlohmann::json();
  };
  const nlohmann::json defaults = to_json(Config{});
  visit_keys(now, [&](const KeyAbout& key, const auto& member, const auto& rule) {
    if (key.resumed == Resumed::Free) return;
    const nlohmann::json is = json_of(member);
    nlohmann::json was = value_of(before, key);
    if (was.is_null()) was = value_of(defaults, key);
    if (was != is && !means_the_same(was, member, rule, now)) {
      changed.push_back(fmt::format("{}.{} was {} and is {}", key.section, key.name, was.dump(), is.dump()));
    }
  });
  return changed;
}

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> words = split_at_commas(text);
  std::erase(words, "");
  return words;
}

}  // namespace snug::train
