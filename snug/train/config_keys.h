#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "snug/base/own_key.h"
#include "snug/data/token_file.h"
#include "snug/data/tokenizer_format.h"
#include "snug/optim/optimizer.h"
#include "snug/plan/budget_request.h"
#include "snug/train/choices.h"
#include "snug/train/config_rules.h"
#include "snug/train/model_family.h"
#include "snug/train/precision.h"

/// The keys of the configuration, all in this file: a member that holds each, and its line in visit_keys().
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
  std::string strategy = "optimal";      ///< As plan::strategy_from reads it.
  std::int64_t verify_replay_every = 0;  ///< Each so many steps what is dropped is remembered and compared; 0: never.
  VerifyBy verify_replay_by = VerifyBy::Hashes;

  bool operator==(const MemoryConfig&) const = default;
};

struct StateConfig {
  std::int64_t every = 0;  ///< Steps between savings of the training state; 0: only where the run ends.
  std::int64_t last = 2;   ///< How many of the newest stay.
  std::int64_t best = 1;   ///< How many of the best stay, by validation loss.
  StateWrite write = StateWrite::Background;

  bool operator==(const StateConfig&) const = default;
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
  StateConfig state;
  OutputConfig output;

  GivenKeys given;

  bool operator==(const Config& other) const = default;
};

/// A key that turns off what others are part of.
struct Switch {
  std::string key;
  std::function<bool(const Config& config)> on;
};

/// Which commands a key is for.
enum class Commands : unsigned char {
  All,  ///< whatever makes a model and its steps
  Runs  ///< those that train to an end, train and finetune: files that others read may have it, --set there may not
};

/// When a key that was set does something.
struct Applies {
  std::function<bool(const Config& config)> with;
  std::string when;  ///< the end of "it applies ..."
  /// Beside `with`, this has to be on; but who turns it off by name has no need to take out what is part of it.
  std::optional<Switch> part_of{};
  Commands commands = Commands::All;
};

/// What is said of a key, beside its member and its rule.
struct KeyAbout {
  std::string section, name;
  std::string help;  ///< one line
  Applies applies;
  Resumed resumed;
};

inline const std::function<bool(const Config&)> kAnyway = [](const Config& /*config*/) { return true; };
inline const Applies kAlways{kAnyway, "always"};
inline const Applies kInRuns{kAnyway, "in runs", {}, Commands::Runs};
inline const Applies kNewModel{[](const Config& c) { return c.model.path.empty(); },
                               "to new models, and the files of model.path decide on theirs"};
inline const Applies kAdapter{[](const Config& c) { return !c.model.path.empty(); },
                              "to pretrained models (model.path), as a new one would stay at its random weights"};
inline const Applies kOwnRank{[](const Config& c) { return c.lora.adapter.empty() && !c.model.path.empty(); },
                              "to new adapters of pretrained models (model.path): that of lora.adapter has its own, "
                              "and a new model would stay at its random weights"};
inline const Applies kNewAdapter{[](const Config& c) { return c.lora.adapter.empty(); },
                                 "with lora.rank above 0 and no lora.adapter, whose own settings hold",
                                 Switch{"lora.rank", [](const Config& c) { return c.lora.rank > 0; }}};
inline const Applies kTokenizing{
    [](const Config& c) { return !c.model.path.empty() || !data::is_token_file(c.data.path); },
    "to text and to pretrained models, and data.path is a file of tokens"};
inline const Applies kWindows{[](const Config& c) { return c.data.packing == Packing::None; },
                              "with data.packing = \"none\", as rows of documents have no validation split"};
inline const Applies kWindowsInRuns{kWindows.with, kWindows.when, {}, Commands::Runs};
inline const Applies kWithWorkers{kAnyway, "with data.workers above 0",
                                  Switch{"data.workers", [](const Config& c) { return c.data.workers > 0; }}};
inline const Applies kVerifying{
    kAnyway, "with memory.verify_replay_every above 0",
    Switch{"memory.verify_replay_every", [](const Config& c) { return c.memory.verify_replay_every > 0; }},
    Commands::Runs};
inline const Switch kFolder{"output.folder", [](const Config& c) { return !c.output.folder.empty(); }};
inline const Applies kWithFolder{kAnyway, "with output.folder, where states are saved", kFolder, Commands::Runs};
inline const Applies kMeasuredStates{
    [](const Config& c) { return c.train.validate_every > 0 && c.state.every % c.train.validate_every == 0; },
    "with output.folder and a state.every that is a multiple of train.validate_every, as else states have no "
    "validation loss",
    kFolder, Commands::Runs};
inline const Applies kScaling{[](const Config& c) { return computed_in(c.precision.compute) == Compute::Fp16; },
                              "with precision.compute = \"fp16\", where the loss is scaled"};
inline const Applies kFewBits{
    [](const Config& c) { return c.precision.weights == TrainedWeights::Bf16 || c.model.weights == BaseWeights::Bf16; },
    "to weights in bf16 (precision.weights, model.weights)"};
inline const Applies kDecaying{[](const Config& c) { return c.optimizer.schedule != LearningRate::Constant; },
                               "with an optimizer.schedule that is not \"constant\""};
inline const Applies kStable{[](const Config& c) { return c.optimizer.schedule == LearningRate::Wsd; },
                             "with optimizer.schedule = \"wsd\""};
inline const Applies kByNorm{[](const Config& c) { return c.optimizer.clip_value == 0; },
                             "without optimizer.clip_value, which clips in its place"};
inline const Applies kOrderOfNorm{
    kByNorm.with, "with optimizer.clip_norm above 0 and no optimizer.clip_value",
    Switch{"optimizer.clip_norm", [](const Config& c) { return c.optimizer.clip_norm > 0; }}};
/// Whether the loss of a configuration is tiled.
bool has_tiled_loss(const ModelConfig& model);
inline const Applies kTiled{[](const Config& c) { return has_tiled_loss(c.model); }, "with a tiled model.loss"};
/// A key that families, or optimizers, declare: with those that do.
Applies with_families_of(const OwnKey& key);
Applies with_optimizers_of(const OwnKey& key);
/// Its help, which names those that have it where others do not.
std::string families_help(const OwnKey& key);
std::string optimizers_help(const OwnKey& key);

/// Whether both ask for the same loss of a model of that kind.
bool same_loss(LossKind a, LossKind b, const Config& config);
/// Whether both come to the same on this machine.
bool same_compute(Compute a, Compute b, const Config& config);

std::vector<std::string> family_names();
std::vector<std::string> optimizer_names();
/// The families that can, as "gpt" or "gpt or llama".
std::string families_with_files();
std::string families_with_tiled_loss();

/// Calls to(KeyAbout, member, rule) for every key. A new key is a member above and a line here: fixed(...) when a
/// resumed run must have it as the run before, varies(...) when it may have another value. Limits keep batch * sequence
/// * width, in bytes, inside 63 bits.
template <class AnyConfig, class Visit>
void visit_keys(AnyConfig& c, Visit&& to) {
  using rules::Anything, rules::Budget, rules::Groups, rules::NameOf, rules::OneOf, rules::StrategyText;
  const auto declared_as = [&to](Resumed resumed) {
    return [&to, resumed](std::string_view section, std::string_view key, auto& member, std::string_view help,
                          const auto& rule, const Applies& applies = kAlways) {
      to(KeyAbout{std::string(section), std::string(key), std::string(help), applies, resumed}, member, rule);
    };
  };
  const auto fixed = declared_as(Resumed::Same), varies = declared_as(Resumed::Free);
  // Keys that members of an open set declare beside themselves.
  const auto own_of = [](const auto& members, auto& values, const auto& declare) {
    std::set<std::string_view> seen;
    for (const auto* member : members) {
      for (const OwnKey& key : member->keys) {
        if (!seen.insert(key.name).second) continue;
        std::visit(
            [&](auto& value) {
              if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, std::string>) {
                declare(key, value, Anything{});
              } else {
                declare(key, value, key.range);
              }
            },
            values.by_name.at(std::string(key.name)));
      }
    }
  };

  fixed("model", "kind", c.model.kind, "architecture", NameOf{family_names});
  fixed("model", "blocks", c.model.blocks, "transformer blocks", Range{1, 65536}, kNewModel);
  fixed("model", "width", c.model.width, "features per token, a multiple of heads", Range{1, 262144}, kNewModel);
  fixed("model", "heads", c.model.heads, "attention heads per block", Range{1, 65536}, kNewModel);
  fixed("model", "sequence", c.model.sequence, "tokens per sequence", Range{1, 1048576});
  fixed("model", "vocabulary", c.model.vocabulary, "different tokens", Range{1, 16777216}, kNewModel);
  own_of(model_families(), c.model.own, [&](const OwnKey& key, auto& value, const auto& rule) {
    declared_as(key.resumed)("model", key.name, value, families_help(key), rule, with_families_of(key));
  });
  fixed("model", "path", c.model.path,
        "pretrained " + families_with_files() +
            ": a GGUF file, or a folder as transformers saves it, which decide on shapes",
        Anything{});
  fixed("model", "weights", c.model.weights,
        "how pretrained weights are kept; packed: as blocks of a GGUF file, frozen (QLoRA)", OneOf<BaseWeights>{});
  fixed("model", "loss", c.model.loss,
        "plain: of all logits at once, as PyTorch has it; tiled: of a few rows at a time, for large vocabularies; "
        "auto: tiled for " +
            families_with_tiled_loss() + ", else plain",
        OneOf<LossKind>{same_loss});
  fixed("model", "loss_tile", c.model.loss_tile,
        "MiB of logits that a tiled loss has at a time: fewer take less memory, and longer", Range{1, 1048576}, kTiled);

  fixed("lora", "rank", c.lora.rank, "rank of adapters, beside which only lora.modules_to_save train; 0: none",
        Range{0, 65536}, kOwnRank);
  fixed("lora", "alpha", c.lora.alpha, "scale of the adapters' product, over the rank", kPositive, kNewAdapter);
  fixed("lora", "dropout", c.lora.dropout, "probability of dropping an adapter's input", kFraction, kNewAdapter);
  fixed("lora", "targets", c.lora.targets,
        "linear modules, or ends of their names, with commas between; * is any text, as in a shell; all-linear",
        Anything{}, kNewAdapter);
  fixed("lora", "modules_to_save", c.lora.modules_to_save,
        "modules, or ends of their names, with commas between, that train whole beside the adapters", Anything{},
        kNewAdapter);
  fixed("lora", "scale", c.lora.scale, "alpha/rank, or alpha/sqrt(rank) (rsLoRA)", OneOf<models::LoraScale>{},
        kNewAdapter);
  fixed("lora", "adapter", c.lora.adapter, "folder of an adapter as PEFT saves it, to go on with", Anything{},
        kAdapter);

  fixed(
      "data", "path", c.data.path,
      "text file, folder of text files, or file of tokens (.bin); libtorch-headers: the C++ headers of the LibTorch in "
      "use",
      Anything{});
  fixed("data", "tokenizer", c.data.tokenizer,
        data::tokenizer_format_names() + "; auto: the pretrained model's own, else bytes", Anything{}, kTokenizing);
  fixed("data", "packing", c.data.packing,
        "none: windows over the text; documents: rows of whole documents (files) that do not see each other",
        OneOf<Packing>{});
  fixed("data", "validation_fraction", c.data.validation_fraction, "share of the text kept for validation", kFraction,
        kWindows);
  fixed("data", "seed", c.data.seed, "seed of the order of data alone; -1: train.seed", Range{-1});
  varies("data", "workers", c.data.workers,
         "threads that make batches ahead, which changes none of them; 0: each is made when it is needed",
         Range{0, 1024});
  varies("data", "prefetch", c.data.prefetch, "batches at most that wait, where there are workers", Range{1, 65536},
         kWithWorkers);

  fixed("train", "batch", c.train.batch, "sequences per step", Range{1, 1048576});
  fixed("train", "accumulate", c.train.accumulate,
        "micro-batches that a step's batch is divided into, whose gradients are added up before the update",
        Range{1, 1048576});
  varies("train", "steps", c.train.steps, "optimizer steps to run", Range{1});
  fixed("train", "seed", c.train.seed, "seed of weights, dropout and data order", kNotNegative);
  varies("train", "validate_every", c.train.validate_every, "steps between validations; 0: only at the end",
         kNotNegative, kWindowsInRuns);
  varies("train", "validation_batches", c.train.validation_batches, "batches per validation; 0: none", kNotNegative,
         kWindows);
  varies("train", "detect_anomaly", c.train.detect_anomaly,
         "when the loss or a gradient is not finite, run the step again and name the first operator that made it so",
         Anything{}, kInRuns);
  varies("train", "threads", c.train.threads, "CPU threads; 0: LibTorch's default", Range{0, 4096});

  fixed("optimizer", "kind", c.optimizer.kind, "optimizer", NameOf{optimizer_names});
  varies("optimizer", "learning_rate", c.optimizer.learning_rate, "highest learning rate", kPositive);
  own_of(optim::optimizer_kinds(), c.optimizer.own, [&](const OwnKey& key, auto& value, const auto& rule) {
    declared_as(key.resumed)("optimizer", key.name, value, optimizers_help(key), rule, with_optimizers_of(key));
  });
  varies("optimizer", "groups", c.optimizer.groups,
         "settings of parameters by name, later ones win: \"*.bias: weight_decay=0; embed*: learning_rate=0.5\", "
         "learning rates times the step's",
         Groups{});
  varies("optimizer", "warmup_steps", c.optimizer.warmup_steps, "steps of linear warmup", kNotNegative);
  varies("optimizer", "schedule", c.optimizer.schedule,
         "learning rate behind the warmup; wsd: it stays, and decays over the last optimizer.decay_steps",
         OneOf<LearningRate>{});
  varies("optimizer", "decay_steps", c.optimizer.decay_steps, "steps of the linear decay at the end", Range{1},
         kStable);
  varies("optimizer", "final_fraction", c.optimizer.final_fraction, "fraction of learning_rate that the last step has",
         Range{0, 1}, kDecaying);
  varies("optimizer", "clip_norm", c.optimizer.clip_norm, "largest norm of all gradients together; 0: off",
         kNotNegative, kByNorm);
  varies("optimizer", "clip_norm_order", c.optimizer.clip_norm_order,
         "of that norm: the sum of amounts, the root of squares, the largest amount", OneOf<NormOrder>{}, kOrderOfNorm);
  varies("optimizer", "in_backward", c.optimizer.in_backward,
         "update each weight in the backward pass as soon as its gradient is there, and free that; changes no bit",
         Anything{});
  varies("optimizer", "clip_value", c.optimizer.clip_value, "largest amount of each element of a gradient; 0: off",
         kNotNegative);

  fixed("precision", "compute", c.precision.compute,
        "type that forward and backward compute in; auto: bf16 where the processor multiplies it, else fp32",
        OneOf<Compute>{same_compute});
  fixed("precision", "weights", c.precision.weights, "type of the weights of new models", OneOf<TrainedWeights>{},
        kNewModel);
  fixed("precision", "updates", c.precision.updates,
        "how weights in bf16 are updated: in a copy in fp32, or without one, rounded up or down by chance",
        OneOf<Updates>{}, kFewBits);
  varies("precision", "init_scale", c.precision.init_scale, "loss scale that a run begins with", kPositive, kScaling);
  varies("precision", "growth_factor", c.precision.growth_factor, "of the loss scale when it grows",
         Range{.low = 1, .low_excluded = true}, kScaling);
  varies("precision", "backoff_factor", c.precision.backoff_factor, "of the loss scale when a gradient overflows",
         Range{.low = 0, .high = 1, .low_excluded = true, .high_excluded = true}, kScaling);
  varies("precision", "growth_interval", c.precision.growth_interval,
         "steps in a row without an overflow, after which the loss scale grows", Range{1}, kScaling);

  varies("memory", "budget", c.memory.budget, "all memory that tensors may take, or percent of the unplanned peak",
         Budget{});
  varies("memory", "strategy", c.memory.strategy, "how the plan is made", StrategyText{});
  varies("memory", "verify_replay_every", c.memory.verify_replay_every,
         "each so many steps, check that what is made again is what was dropped; 0: never", kNotNegative, kInRuns);
  varies("memory", "verify_replay_by", c.memory.verify_replay_by,
         "hashes: a difference is found to the 4 KiB; values: to the element, in memory that no budget counts",
         OneOf<VerifyBy>{}, kVerifying);

  varies("state", "every", c.state.every,
         "steps between savings of the training state in output.folder; 0: one alone, where a run ends, is stopped or "
         "fails",
         kNotNegative, kInRuns);
  varies("state", "last", c.state.last, "how many of the newest states stay", Range{1}, kWithFolder);
  varies("state", "best", c.state.best, "how many of those with the smallest validation loss stay beside them",
         kNotNegative, kMeasuredStates);
  varies("state", "write", c.state.write,
         "background: while training goes on, as far as the budget has room for a copy; wait: before it goes on",
         OneOf<StateWrite>{}, kWithFolder);

  varies("output", "folder", c.output.folder,
         "where metrics, training state and what finetune trained go; empty: write none", Anything{}, kInRuns);
}

}  // namespace snug::train
