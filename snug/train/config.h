#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/train/choices.h"

namespace snug::train {

struct ModelConfig {
  ModelKind kind = ModelKind::Gpt;
  std::int64_t blocks = 6;
  std::int64_t width = 384;
  std::int64_t heads = 6;
  std::int64_t sequence = 256;
  std::int64_t vocabulary = 256;
  double dropout = 0.0;
  std::int64_t key_heads = 0;    ///< 0: as many as heads.
  std::int64_t inner_width = 0;  ///< 0: two thirds of four times the width, up to 64.
  std::string path;              ///< Files of a pretrained model, which decide on its shape; empty: a new one.
  BaseWeights weights = BaseWeights::Fp32;
  LossKind loss = LossKind::Auto;

  bool operator==(const ModelConfig&) const = default;
};

struct LoraConfig {
  std::int64_t rank = 0;  ///< 0: no adapters, every weight trains.
  double alpha = 16;
  double dropout = 0;
  std::string targets = "q_proj, v_proj";  ///< See models::LoraOptions; commas between.
  std::string modules_to_save;             ///< The same.
  models::LoraScale scale = models::LoraScale::AlphaOverRank;
  std::string adapter;  ///< Folder of one to go on with; its own settings hold.

  bool operator==(const LoraConfig&) const = default;
};

struct DataConfig {
  std::string path;
  std::string tokenizer = "auto";
  Packing packing = Packing::None;
  double validation_fraction = 0.05;
  std::int64_t workers = 0;   ///< Threads that make batches ahead; 0: each is made when it is needed.
  std::int64_t prefetch = 2;  ///< Batches that may wait.

  bool operator==(const DataConfig&) const = default;
};

struct TrainConfig {
  std::int64_t batch = 8;
  std::int64_t steps = 100;
  std::int64_t seed = 0;
  std::int64_t validate_every = 0;  ///< Steps; 0: only at the end.
  std::int64_t validation_batches = 8;
  bool detect_anomaly = false;
  std::int64_t threads = 0;  ///< 0: LibTorch's default.

  bool operator==(const TrainConfig&) const = default;
};

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::AdamW;
  double learning_rate = 3e-4;
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  std::int64_t warmup_steps = 10;
  double final_fraction = 0.1;  ///< The cosine decays to this fraction of learning_rate.
  double clip_norm = 1.0;       ///< 0: off.

  bool operator==(const OptimizerConfig&) const = default;
};

struct PrecisionConfig {
  Compute compute = Compute::Fp32;

  bool operator==(const PrecisionConfig&) const = default;
};

struct MemoryConfig {
  std::string budget;                    ///< What parse_budget reads; empty: no budget.
  std::string strategy = "optimal";      ///< As plan::strategy_from reads it.
  std::int64_t verify_replay_every = 0;  ///< Each so many steps what is dropped is remembered and compared; 0: never.
  VerifyBy verify_replay_by = VerifyBy::Hashes;

  bool operator==(const MemoryConfig&) const = default;
};

struct StateConfig {
  std::int64_t every = 0;  ///< Steps between savings of the training state; 0: only when the run is stopped.
  std::int64_t last = 2;   ///< How many of the newest stay.
  std::int64_t best = 1;   ///< How many of the best stay, by validation loss.
  StateWrite write = StateWrite::Background;

  bool operator==(const StateConfig&) const = default;
};

struct OutputConfig {
  std::string folder;  ///< Empty: write nothing.

  bool operator==(const OutputConfig&) const = default;
};

/// Everything a training run is told. A plain value: its keys, their help and their rules are described once, in
/// config.cpp, and reading, writing, --set and --help all follow from that description.
struct Config {
  ModelConfig model;
  LoraConfig lora;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  PrecisionConfig precision;
  MemoryConfig memory;
  StateConfig state;
  OutputConfig output;

  /// Keys that were set by name, as "section.key": what a default may be, a setting may not, which is to do nothing.
  /// Not compared.
  std::set<std::string, std::less<>> given;

  bool operator==(const Config& other) const;
};

/// Reads {"section": {"key": value}}; what is not mentioned keeps its default. `source` names the file in messages.
/// Throws UsageError for an unknown section or key (naming the nearest known one), a value of the wrong type, and a
/// value outside its own rule. Keys are not compared with each other here: see validate().
Config config_from_json(const nlohmann::ordered_json& json, std::string_view source);

/// Reads a TOML file the same way. Call validate() once the last set_key() is done.
Config load_config(const std::filesystem::path& path);

/// Every section and key, in the order of the structs; config_from_json reads it back to an equal Config.
nlohmann::ordered_json to_json(const Config& config);

/// Applies one "section.key=value" from the command line. Text needs no quotes. Throws UsageError as config_from_json
/// does, and leaves `config` unchanged then.
void set_key(Config& config, std::string_view assignment);

/// Checks every key's own rule and the rules between keys (width divisible by heads, ...), and that no key was set, by
/// name or to another value than its default, that does nothing beside the others; throws UsageError.
void validate(const Config& config);

struct KeyHelp {
  std::string key;           ///< "train.steps"
  std::string type;          ///< "integer", "number", "string" or "boolean"
  std::string default_text;  ///< As it would stand in a TOML file: 100, "optimal".
  std::string help;          ///< One line, with the key's rule at the end.
};

/// All keys in the order of the structs, for --help and the documentation.
std::vector<KeyHelp> config_keys();

/// The words of a list with commas between them, without the blanks around.
std::vector<std::string> split_list(std::string_view text);

/// A share of the peak that the same step has without any plan.
struct Percent {
  double value = 100.0;  ///< In (0, 100].

  bool operator==(const Percent&) const = default;
};

/// What memory.budget asks for: nothing, so many bytes, or a percentage of the unplanned peak.
using BudgetRequest = std::variant<std::monostate, Bytes, Percent>;

/// Reads "", "400MiB" or "60%". Throws UsageError for zero, less than zero, more than 100% and anything else.
BudgetRequest parse_budget(std::string_view text);

}  // namespace snug::train
