#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "snug/data/token_file.h"
#include "snug/train/config_values.h"
#include "snug/train/precision.h"

/// When keys of the configuration do something.
namespace snug::train {

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
inline const Applies kWithShards{
    kAnyway, "beside parallel.shard",
    Switch{"parallel.shard", [](const Config& c) { return c.parallel.shard != ShardOf::None; }}, Commands::Runs};
inline const Applies kWithLayersInParts{
    kAnyway, "beside parallel.tensor above 1",
    Switch{"parallel.tensor", [](const Config& c) { return c.parallel.tensor > 1; }}, Commands::Runs};
inline const Applies kWithSequencesInParts{
    kAnyway, "beside parallel.context above 1",
    Switch{"parallel.context", [](const Config& c) { return c.parallel.context > 1; }}, Commands::Runs};
inline const Applies kWithStages{kAnyway, "beside parallel.pipeline above 1",
                                 Switch{"parallel.pipeline", [](const Config& c) { return c.parallel.pipeline > 1; }},
                                 Commands::Runs};
inline const Applies kNewModel{[](const Config& c) { return c.model.path.empty(); },
                               "to new models, and the files of model.path decide on theirs"};
inline const Applies kAdapter{
    [](const Config& c) { return !c.model.path.empty(); },
    "to pretrained models (model.path, as snug finetune has them), as a new one would stay at its random weights"};
inline const Applies kOwnRank{
    [](const Config& c) { return c.lora.adapter.empty() && !c.model.path.empty(); },
    "to new adapters of pretrained models (model.path, as snug finetune has them): that of lora.adapter has its own, "
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
inline const Applies kWithRunFolder{kAnyway, "with output.folder, where it is written", kFolder, Commands::Runs};
inline const Applies kMeasuredStates{
    [](const Config& c) { return c.train.validate_every > 0 && c.state.every % c.train.validate_every == 0; },
    "with output.folder and a state.every that is a multiple of train.validate_every, as else states have no "
    "validation loss",
    kFolder, Commands::Runs};
inline const Applies kScaling{[](const Config& c) { return computed_in(c) == Compute::Fp16; },
                              "with precision.compute = \"fp16\", where the loss is scaled"};
inline const Applies kFewBits{[](const Config& c) {
                                const bool adapters = c.lora.rank > 0 || !c.lora.adapter.empty();  // which are in fp32
                                // Those of lora.adapter may have modules_to_save.
                                const bool whole =
                                    !adapters || !c.lora.modules_to_save.empty() || !c.lora.adapter.empty();
                                const bool pretrained = c.model.weights == BaseWeights::Bf16 && whole;
                                return c.precision.weights == TrainedWeights::Bf16 || pretrained;
                              },
                              "to weights in bf16 that train (precision.weights, model.weights)"};
inline const Applies kDecaying{[](const Config& c) { return c.optimizer.schedule != LearningRate::Constant; },
                               "with an optimizer.schedule that is not \"constant\""};
inline const Applies kStable{[](const Config& c) { return c.optimizer.schedule == LearningRate::Wsd; },
                             "with optimizer.schedule = \"wsd\""};
inline const Applies kByNorm{[](const Config& c) { return c.optimizer.clip_value == 0; },
                             "without optimizer.clip_value, which clips in its place"};
inline const Applies kOrderOfNorm{
    kByNorm.with, "with optimizer.clip_norm above 0 and no optimizer.clip_value",
    Switch{"optimizer.clip_norm", [](const Config& c) { return c.optimizer.clip_norm > 0; }}};
inline const Applies kWithResidentWeights{
    [](const Config& c) { return c.memory.budget && c.memory.weights != KeptIn::Streamed; },
    "with memory.budget, where memory.weights is not streamed, which is optimizer state too"};
inline const Applies kWithBudget{[](const Config& c) { return c.memory.budget.has_value(); }, "with memory.budget"};
inline const Applies kOnAccelerators{[](const Config& c) { return !c10::Device(c.train.device).is_cpu(); },
                                     "to accelerators (train.device), as pages of the CPU's memory are moved to where "
                                     "a range is needed"};
/// Whether the loss of a configuration is tiled.
bool has_tiled_loss(const ModelConfig& model);
inline const Applies kTiled{[](const Config& c) { return has_tiled_loss(c.model); }, "with a tiled model.loss"};
bool drops_attention(const Config& config);
bool attends_in_a_ring(const Config& config);
/// Whether attention has neither masks nor dropout, is not in fp16, and in no ring: then model.attention has a choice.
bool has_plain_attention(const Config& config);
inline const Applies kPlainAttention{has_plain_attention,
                                     "to attention without dropout (model.dropout of \"gpt2\") and masks (data.packing "
                                     "= \"documents\"), and not in fp16 or a ring"};
/// A key that families, or optimizers, declare: with those that do.
Applies with_families_of(const OwnKey& key);
Applies with_optimizers_of(const OwnKey& key);
/// Its help, which names those that have it where others do not.
std::string families_help(const OwnKey& key);
std::string optimizers_help(const OwnKey& key);

/// What weights that are streamed need and a configuration has not, and what to do: the end of "but ...".
std::optional<std::string> why_not_streamed(const Config& config);
/// What memory.activations in fewer bits need and a configuration has not, and what to do: the end of "but ...".
std::optional<std::string> why_not_lossy(const Config& config);
/// What of a configuration optimizer.in_backward cannot be with, and what to do: the end of "but ...".
std::optional<std::string> why_not_in_backward(const Config& config);

/// Whether both ask for the same loss of a model of that kind.
bool same_loss(LossKind a, LossKind b, const Config& config);
/// Whether both come to the same on this machine.
bool same_compute(Compute a, Compute b, const Config& config);

std::vector<std::string> family_names();
std::vector<std::string> optimizer_names();
/// The families that can, as "gpt" or "gpt or llama".
std::string families_with_files();
std::string families_with_tiled_loss();
/// What memory.allow takes, with commas between.
std::string knob_names();

}  // namespace snug::train
