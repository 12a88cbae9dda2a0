#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "snug/base/own_key.h"
#include "snug/models/vocabulary_loss.h"

namespace snug::train {

struct ModelConfig;
class LanguageModel;
class ModelFiles;
class Pretrained;

/// Models that the command makes in the same way: what model.kind takes. A file of its own under train/families that
/// defines one, and a line in model_families(), are all that a family needs.
struct ModelFamily {
  std::string_view name;
  std::vector<OwnKey> keys;  ///< of the section [model], beside those of all; they are for new models alone
  /// Of its keys, what makes a tiny one use all that larger ones do (see tiny_config).
  std::vector<std::pair<std::string_view, OwnValue>> tiny{};
  models::VocabularyLoss usual_loss = models::PlainLoss{};  ///< where model.loss is auto

  bool drops_attention = false;  ///< its key "dropout" is also of attention's probabilities

  /// A new one. Its weights are drawn from the default generator.
  std::unique_ptr<LanguageModel> (*make)(const ModelConfig& config);
  /// Throws UsageError for a new one whose keys do not go together; null where any do.
  void (*check)(const ModelConfig& config) = nullptr;
  /// What files of it call themselves: model_type in config.json, general.architecture of a GGUF file.
  std::string_view architecture{};
  /// One from such files (model.path), as Pretrained says; null where none can be read.
  std::unique_ptr<const Pretrained> (*open)(const ModelFiles& files) = nullptr;
};

/// A key that several have.
inline const OwnKey kDropout{"dropout", 0.0, "probability of dropping an activation", kFraction,
                             "for adapters, see lora.dropout"};

/// For families whose heads part the width among them. Throws UsageError naming the widths beside it that they can.
void check_heads(const ModelConfig& config);

/// What makes one that runs at once, of 256 tokens, for sequences of 16.
ModelConfig tiny_config(const ModelFamily& family);

/// All there are, the default first.
const std::vector<const ModelFamily*>& model_families();

/// The one of that name. Throws UsageError for a name that is none.
const ModelFamily& model_family(std::string_view name);

/// The one whose files these are. Throws UsageError when they are of no family that reads files.
const ModelFamily& family_of(const ModelFiles& files);

}  // namespace snug::train
