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
#include <tuple>
#include <type_traits>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/nearest.h"
#include "snug/base/toml.h"
#include "snug/data/token_file.h"
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

/// When a key that was set does something.
struct Applies {
  bool (*with)(const Config& config);
  const char* when;  ///< the end of "it applies ..."
  /// The key that turns off what this one is part of: who sets that by name has no need to take out this one.
  const char* turned_off_by = nullptr;
};
constexpr Applies kAlways{[](const Config& /*config*/) { return true; }, "always"};
constexpr Applies kNewModel{[](const Config& c) { return c.model.path.empty(); },
                            "to new models, and the files of model.path decide on theirs"};
constexpr Applies kGpt{[](const Config& c) { return c.model.kind == ModelKind::Gpt; },
                       "with model.kind = \"gpt\"; for adapters, see lora.dropout"};
constexpr Applies kNewLlama{[](const Config& c) { return c.model.kind == ModelKind::Llama && c.model.path.empty(); },
                            "with model.kind = \"llama\" and no model.path, whose files decide"};
constexpr Applies kAdapter{[](const Config& c) { return !c.model.path.empty(); },
                           "to pretrained models (model.path), as a new one would stay at its random weights"};
constexpr Applies kOwnRank{[](const Config& c) { return c.lora.adapter.empty() && !c.model.path.empty(); },
                           "to new adapters of pretrained models (model.path): that of lora.adapter has its own, and a "
                           "new model would stay at its random weights"};
constexpr Applies kNewAdapter{[](const Config& c) { return c.lora.rank > 0 && c.lora.adapter.empty(); },
                              "with lora.rank above 0 and no lora.adapter, whose own settings hold", "lora.rank"};
constexpr Applies kTokenizing{
    [](const Config& c) { return !c.model.path.empty() || !data::is_token_file(c.data.path); },
    "to text and to pretrained models, and data.path is a file of tokens"};
constexpr Applies kWindows{[](const Config& c) { return c.data.packing == Packing::None; },
                           "with data.packing = \"none\", as rows of documents have no validation split"};
constexpr Applies kWithWorkers{[](const Config& c) { return c.data.workers > 0; }, "with data.workers above 0",
                               "data.workers"};
constexpr Applies kVerifying{[](const Config& c) { return c.memory.verify_replay_every > 0; },
                             "with memory.verify_replay_every above 0", "memory.verify_replay_every"};
constexpr Applies kWithFolder{[](const Config& c) { return !c.output.folder.empty(); },
                              "with output.folder, where states are saved", "output.folder"};

// The one description of all keys: calls to(section, key, member, help, rule, applies) for each. A new key is a new
// line. The upper limits keep batch * sequence * width, in bytes, inside 63 bits.
template <class AnyConfig, class Visit>
void visit_keys(AnyConfig& c, Visit&& to) {
  const auto visit = [&](const char* section, const char* key, auto& member, const char* help, const auto& rule,
                         const Applies& applies = kAlways) { to(section, key, member, help, rule, applies); };
  visit("model", "kind", c.model.kind, "architecture", OneOf<ModelKind>{});
  visit("model", "blocks", c.model.blocks, "transformer blocks", Range{1, 65536}, kNewModel);
  visit("model", "width", c.model.width, "features per token, a multiple of heads", Range{1, 262144}, kNewModel);
  visit("model", "heads", c.model.heads, "attention heads per block", Range{1, 65536}, kNewModel);
  visit("model", "sequence", c.model.sequence, "tokens per sequence", Range{1, 1048576});
  visit("model", "vocabulary", c.model.vocabulary, "different tokens", Range{1, 16777216}, kNewModel);
  visit("model", "dropout", c.model.dropout, "gpt: probability of dropping an activation", kFraction, kGpt);
  visit("model", "key_heads", c.model.key_heads, "llama: heads of keys and values; 0: as many as heads",
        Range{0, 65536}, kNewLlama);
  visit("model", "inner_width", c.model.inner_width,
        "llama: features inside the feed-forward part; 0: 8/3 of width, rounded up to 64", Range{0, 1048576},
        kNewLlama);
  visit("model", "path", c.model.path,
        "pretrained llama: a GGUF file, or a folder as transformers saves it, which decide on shapes", Anything{});
  visit("model", "weights", c.model.weights,
        "how pretrained weights are kept; packed: as blocks of a GGUF file, frozen (QLoRA)", OneOf<BaseWeights>{});
  visit("model", "loss", c.model.loss,
        "plain: of all logits at once, as PyTorch has it; tiled: of 32 MiB of them at a time, for large vocabularies; "
        "auto: plain for gpt, tiled for llama",
        OneOf<LossKind>{});
  visit("lora", "rank", c.lora.rank, "rank of adapters, beside which only lora.modules_to_save train; 0: none",
        Range{0, 65536}, kOwnRank);
  visit("lora", "alpha", c.lora.alpha, "scale of the adapters' product, over the rank", kPositive, kNewAdapter);
  visit("lora", "dropout", c.lora.dropout, "probability of dropping an adapter's input", kFraction, kNewAdapter);
  visit("lora", "targets", c.lora.targets,
        "linear modules, or ends of their names, with commas between; * is any text, as in a shell; all-linear",
        Anything{}, kNewAdapter);
  visit("lora", "modules_to_save", c.lora.modules_to_save,
        "modules, or ends of their names, with commas between, that train whole beside the adapters", Anything{},
        kNewAdapter);
  visit("lora", "scale", c.lora.scale, "alpha/rank, or alpha/sqrt(rank) (rsLoRA)", OneOf<models::LoraScale>{},
        kNewAdapter);
  visit("lora", "adapter", c.lora.adapter, "folder of an adapter as PEFT saves it, to go on with", Anything{},
        kAdapter);
  visit(
      "data", "path", c.data.path,
      "text file, folder of text files, or file of tokens (.bin); libtorch-headers: the C++ headers of the LibTorch in "
      "use",
      Anything{});
  visit("data", "tokenizer", c.data.tokenizer,
        "bytes, a tokenizer.json, a SentencePiece .model, a GGUF file; auto: the pretrained model's own, else bytes",
        Anything{}, kTokenizing);
  visit(
      "data", "packing", c.data.packing,
      "none: windows over the text; documents: rows of whole documents (files) that do not see each other, llama only",
      OneOf<Packing>{});
  visit("data", "validation_fraction", c.data.validation_fraction, "share of the text kept for validation", kFraction,
        kWindows);
  visit("data", "workers", c.data.workers,
        "threads that make batches ahead, which changes none of them; 0: each is made when it is needed",
        Range{0, 1024});
  visit("data", "prefetch", c.data.prefetch, "batches at most that wait, where there are workers", Range{1, 65536},
        kWithWorkers);
  visit("train", "batch", c.train.batch, "sequences per step", Range{1, 1048576});
  visit("train", "steps", c.train.steps, "optimizer steps to run", Range{1});
  visit("train", "seed", c.train.seed, "seed of weights, dropout and data order", kNotNegative);
  visit("train", "validate_every", c.train.validate_every, "steps between validations; 0: only at the end",
        kNotNegative, kWindows);
  visit("train", "validation_batches", c.train.validation_batches, "batches per validation; 0: none", kNotNegative,
        kWindows);
  visit("train", "detect_anomaly", c.train.detect_anomaly,
        "when the loss or a gradient is not finite, run the step again and name the first operator that made it so",
        Anything{});
  visit("train", "threads", c.train.threads, "CPU threads; 0: LibTorch's default", Range{0, 4096});
  visit("optimizer", "kind", c.optimizer.kind, "optimizer", OneOf<OptimizerKind>{});
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
  visit("precision", "compute", c.precision.compute, "type that forward and backward compute in", OneOf<Compute>{});
  visit("memory", "budget", c.memory.budget, "all memory that tensors may take, or percent of the unplanned peak",
        BudgetText{});
  visit("memory", "strategy", c.memory.strategy, "how the plan is made", StrategyText{});
  visit("memory", "verify_replay_every", c.memory.verify_replay_every,
        "each so many steps, check that what is made again is what was dropped; 0: never", kNotNegative);
  visit("memory", "verify_replay_by", c.memory.verify_replay_by,
        "hashes: a difference is found to the 4 KiB; values: to the element, in memory that no budget counts",
        OneOf<VerifyBy>{}, kVerifying);
  visit("state", "every", c.state.every,
        "steps between savings of the training state in output.folder, and one at the end; 0: only that, and finetune "
        "none",
        kNotNegative);
  visit("state", "last", c.state.last, "how many of the newest states stay", Range{1}, kWithFolder);
  visit("state", "best", c.state.best, "how many of those with the smallest validation loss stay beside them",
        kNotNegative, kWithFolder);
  visit("state", "write", c.state.write,
        "background: while training goes on, as far as the budget has room for a copy; wait: before it goes on",
        OneOf<StateWrite>{}, kWithFolder);
  visit("output", "folder", c.output.folder,
        "where metrics, training state and what finetune trained go; empty: write none", Anything{});
}

template <class T>
concept Choice = std::is_enum_v<T>;

const char* type_name(const std::string&) { return "string"; }
const char* type_name(Choice auto) { return "string"; }
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

// The value as JSON has it.
template <class Value>
ordered_json json_of(const Value& value) {
  if constexpr (Choice<Value>) {
    return std::string(word(value));
  } else {
    return value;
  }
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
  throw UsageError(fmt::format("{} is {}; it must be {}", where, show(json_of(value)), describe(rule)));
}

// What a word names, among those of its key.
template <class Value>
Value chosen(std::string_view where, const std::string& text, const OneOf<Value>& rule) {
  if (const auto choice = choice_named<Value>(text)) return *choice;
  throw UsageError(
      fmt::format("{} is {}; {}it must be {}", where, show(text), did_you_mean(text, words_of(rule)), describe(rule)));
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
  visit_keys(config, [&](const char* a_section, const char* a_key, auto& member, const char*, const auto& rule,
                         const Applies&) {
    if (section != a_section || key != a_key) return;
    found = true;
    using Member = std::remove_cvref_t<decltype(member)>;
    using Written = std::conditional_t<Choice<Member>, std::string, Member>;
    auto value = as(json, Written());
    if constexpr (std::is_same_v<Written, std::string>) {
      if (!value && raw && json.is_primitive()) value = std::string(*raw);
    }
    const std::string where = fmt::format("{}: {}.{}", source, section, key);
    if (!value) {
      throw UsageError(fmt::format("{} must be of type {}, but is {} ({})", where, type_name(member), show(json),
                                   json.is_structured() ? "a table or list" : json.type_name()));
    }
    if constexpr (Choice<Member>) {
      member = chosen(where, *value, rule);
    } else {
      check(where, *value, rule);
      member = *value;
    }
  });
  if (!found) refuse_key(section, key, source);
  config.given.insert(fmt::format("{}.{}", section, key));
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

bool Config::operator==(const Config& other) const {
  const auto all = [](const Config& c) {
    return std::tie(c.model, c.lora, c.data, c.train, c.optimizer, c.precision, c.memory, c.state, c.output);
  };
  return all(*this) == all(other);
}

Config load_config(const std::filesystem::path& path) { return config_from_json(read_toml(path), path.string()); }

ordered_json to_json(const Config& config) {
  ordered_json json = ordered_json::object();
  visit_keys(config, [&](const char* section, const char* key, const auto& member, auto&&...) {
    json[section][key] = json_of(member);
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
  if (config.data.packing == Packing::Documents && model.kind != ModelKind::Llama) {
    throw UsageError(
        fmt::format("configuration: data.packing = \"documents\" needs model.kind = \"llama\", and it is "
                    "\"{}\"",
                    word(model.kind)));
  }
  if (config.state.every > 0 && config.output.folder.empty()) {
    throw UsageError(
        fmt::format("configuration: state.every = {}, but output.folder is empty, so that no state is saved; "
                    "set both or neither",
                    config.state.every));
  }
  if (!model.path.empty()) {  // its files decide
    if (model.kind != ModelKind::Llama) {
      throw UsageError(
          fmt::format("configuration: model.path is set and model.kind is \"{}\"; pretrained models are of "
                      "kind \"llama\"",
                      word(model.kind)));
    }
    return;
  }
  if (model.width % model.heads != 0) {
    throw UsageError(fmt::format("configuration: model.width = {} is not divisible by model.heads = {}; use {} or {}",
                                 model.width, model.heads,
                                 std::max(model.width / model.heads, std::int64_t{1}) * model.heads,
                                 (model.width / model.heads + 1) * model.heads));
  }
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
  visit_keys(config, [&](const char* section, const char* key, const auto& member, const char*, const auto&,
                         const Applies& applies) {
    const std::string name = fmt::format("{}.{}", section, key);
    const bool set = config.given.contains(name) || json_of(member) != defaults[section][key];
    if (!set || !asks(member) || applies.with(config)) return;
    if (applies.turned_off_by != nullptr && config.given.contains(applies.turned_off_by)) return;
    throw UsageError(fmt::format("configuration: {} = {} does nothing here: it applies {}; leave it out", name,
                                 show(json_of(member)), applies.when));
  });
}

}  // namespace

void validate(const Config& config) {
  try {
    (void)to_json(config).dump();
  } catch (const nlohmann::json::exception&) {
    throw UsageError("configuration: a text in it is not UTF-8, which files of JSON cannot hold; rename that file");
  }
  visit_keys(config, [](const char* section, const char* key, const auto& member, const char*, const auto& rule,
                        const Applies&) { check(fmt::format("configuration: {}.{}", section, key), member, rule); });
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
  visit_keys(defaults, [&](const char* section, const char* key, const auto& member, const char* help, const auto& rule,
                           const Applies&) {
    const std::string limits = describe(rule);
    keys.push_back({.key = fmt::format("{}.{}", section, key),
                    .type = type_name(member),
                    .default_text = show(json_of(member)),
                    .help = limits.empty() ? help : fmt::format("{} ({})", help, limits)});
  });
  return keys;
}

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    if (const std::string_view word = trimmed(text.substr(0, comma)); !word.empty()) words.emplace_back(word);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return words;
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
