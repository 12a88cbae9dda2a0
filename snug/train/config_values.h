#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "snug/base/own_key.h"
#include "snug/optim/optimizer.h"
#include "snug/plan/budget_request.h"
#include "snug/train/choices.h"
#include "snug/train/model_family.h"

/// What the configuration holds: a member for each key. config_keys.h says the rest of them.
namespace snug::train {

struct ModelConfig {
  std::string kind = "gpt";
  std::int64_t blocks = 6;
  std::int64_t width = 384;
  std::int64_t heads = 6;
  std::int64_t sequence = 256;
  std::int64_t vocabulary = 256;
  OwnValues own = own_defaults(model_families());  ///< Of the keys that families declare.
  std::string path;  ///< Files of a pretrained model, which decide on its shape; empty: a new one.
  BaseWeights weights = BaseWeights::Fp32;
  LossKind loss = LossKind::Auto;
  std::int64_t loss_tile = 32;  ///< MiB of logits that a tiled loss has at a time.
  std::int64_t mlp_tile = 0;    ///< Tokens that a feed-forward part has at a time; 0: all.
  models::AttentionMethod attention = models::AttentionMethod::LibTorch;

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
  std::int64_t seed = -1;     ///< -1: train.seed.
  std::int64_t workers = 0;   ///< Threads that make batches ahead; 0: each is made when it is needed.
  std::int64_t prefetch = 2;  ///< Batches that may wait.

  bool operator==(const DataConfig&) const = default;
};

struct TrainConfig {
  std::int64_t batch = 8;
  std::int64_t accumulate = 1;  ///< Micro-batches that a step's batch goes through the model in.
  std::int64_t steps = 100;
  std::int64_t seed = 0;
  std::int64_t validate_every = 0;  ///< Steps; 0: only at the end.
  std::int64_t validation_batches = 8;
  bool detect_anomaly = false;
  std::int64_t threads = 0;  ///< 0: LibTorch's default.
  std::string device = "cpu";

  bool operator==(const TrainConfig&) const = default;
};

struct OptimizerConfig {
  std::string kind = "adamw";
  double learning_rate = 3e-4;
  OwnValues own = own_defaults(optim::optimizer_kinds());  ///< Of the keys that optimizers declare.
  std::string groups;                                      ///< See optim::parse_group_rules.
  std::int64_t warmup_steps = 10;
  LearningRate schedule = LearningRate::Cosine;
  std::int64_t decay_steps = 10;  ///< Of "wsd".
  double final_fraction = 0.1;    ///< Of learning_rate, which the last step has.
  double clip_norm = 1.0;         ///< 0: off.
  NormOrder clip_norm_order = NormOrder::Euclidean;
  double clip_value = 0;     ///< Of each element, in place of a norm; 0: off.
  bool in_backward = false;  ///< Each weight is updated as soon as its gradient is there.

  bool operator==(const OptimizerConfig&) const = default;
};

struct PrecisionConfig {
  Compute compute = Compute::Fp32;
  TrainedWeights weights = TrainedWeights::Fp32;
  Updates updates = Updates::Master;
  // Of the loss scale, in fp16; see optim::GradScalerOptions.
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;

  bool operator==(const PrecisionConfig&) const = default;
};

struct MemoryConfig {
  std::optional<plan::BudgetRequest> budget;
  std::optional<plan::BudgetRequest> host_budget;  ///< In bytes,
  std::optional<plan::BudgetRequest> disk_budget;  ///< as this is.
  KeptIn weights = KeptIn::Device;                 ///< With their gradients and what the optimizer keeps of them.
  KeptIn optimizer = KeptIn::Device;               ///< What it keeps alone.
  Activations activations = Activations::Exact;
  bool arena = false;                    ///< What steps take of an accelerator's memory lies in one range of it.
  std::string strategy = "optimal";      ///< As plan::strategy_from reads it.
  std::string allow;                     ///< Knobs that may be turned; commas between.
  bool check_first_step = true;          ///< Compares what is first recomputed with what it was, then one value a step.
  std::int64_t verify_replay_every = 0;  ///< Each so many steps what is dropped is remembered and compared; 0: never.
  VerifyBy verify_replay_by = VerifyBy::Hashes;

  bool operator==(const MemoryConfig&) const = default;
};

struct ParallelConfig {
  double timeout = 600;  ///< Seconds that processes wait for each other.
  ReduceIn reduce = ReduceIn::Gradient;
  ShardOf shard = ShardOf::None;
  std::int64_t shard_degree = 0;       ///< Replicas that share shards; 0: all.
  std::int64_t tensor = 1;             ///< Processes with a part of every layer each.
  bool sequence_parallel = false;      ///< Between these layers, with a part of every sequence.
  bool partition_activations = false;  ///< Or with all of them, of which plans may keep parts.
  std::int64_t pipeline = 1;           ///< Processes that have some of the layers each.
  std::string schedule = "1f1b";       ///< See plan::PipelineSchedule.
  std::int64_t context = 1;            ///< Processes with a part of every sequence each, and whole layers.
  models::ContextMethod context_by = models::ContextMethod::Heads;

  bool operator==(const ParallelConfig&) const = default;
};

struct StateConfig {
  std::int64_t every = 0;  ///< Steps between saves of the training state; 0: by `interval`.
  double interval = 600;   ///< Seconds between saves of the training state (see SaveClock); 0: never by time.
  std::int64_t last = 2;   ///< How many of the newest stay.
  std::int64_t best = 1;   ///< How many of the best stay, by validation loss.
  StateWrite write = StateWrite::Background;

  bool operator==(const StateConfig&) const = default;
};

struct MonitorConfig {
  double interval = 0;             ///< Seconds between samples; 0: none.
  std::int64_t growth_steps = 40;  ///< See memory::AlarmRules; 0: no alarm.
  double headroom = 0.05;          ///< The same.

  bool operator==(const MonitorConfig&) const = default;
};

struct OutputConfig {
  std::string folder;  ///< Empty: write nothing.

  bool operator==(const OutputConfig&) const = default;
};

/// Keys that were set by name, as "section.key": what a default may be, a setting may not, which is to do nothing. How
/// a configuration came about is no part of what it says: all are equal.
struct GivenKeys : std::set<std::string, std::less<>> {
  friend bool operator==(const GivenKeys& /*one*/, const GivenKeys& /*other*/) { return true; }
};

/// Everything a training run is told. A plain value: reading, writing, --set, --help and what a resumed run may change
/// all follow from visit_keys().
struct Config {
  ModelConfig model;
  LoraConfig lora;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  PrecisionConfig precision;
  MemoryConfig memory;
  ParallelConfig parallel;
  StateConfig state;
  MonitorConfig monitor;
  OutputConfig output;

  GivenKeys given;

  bool operator==(const Config& other) const = default;
};

}  // namespace snug::train
