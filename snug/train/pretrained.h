#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "snug/data/tokenizer.h"
#include "snug/models/llama.h"
#include "snug/state/gguf.h"
#include "snug/state/stored_tensor.h"
#include "snug/train/choices.h"

namespace snug::train {

/// A pretrained model of the Llama family as its files have it: a GGUF file, or a folder as transformers saves it
/// (config.json, safetensors, tokenizer.json or tokenizer.model). Opening reads headers only.
class Pretrained {
 public:
  /// Throws UsageError when there is no such file, for architectures that are not known, and when it is not whole;
  /// DamagedFile when a file is not what its format says.
  static Pretrained open(const std::filesystem::path& path);

  [[nodiscard]] const models::LlamaOptions& options() const { return options_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// The model with its weights. Throws UsageError that lists all tensors that are missing, left over or of another
  /// shape, and for Packed when the file has no blocks.
  [[nodiscard]] models::Llama load(BaseWeights weights, models::VocabularyLoss loss = models::TiledLoss{}) const;

  /// Its tokenizer. Throws UsageError when there is none, it is of a kind that is not known, or it has more tokens than
  /// the model.
  [[nodiscard]] data::Tokenizer tokenizer() const;

  /// Throws UsageError when a tokenizer has more tokens than the model. `from`: where it is from.
  void check_fits(const data::Tokenizer& tokenizer, const std::filesystem::path& from) const;

  /// Sizes and samples of its files, to tell whether they were replaced.
  [[nodiscard]] std::string fingerprint() const;

  /// Tokens that end a text; may be empty.
  [[nodiscard]] const std::vector<data::TokenId>& ends() const { return ends_; }

 private:
  Pretrained() = default;
  static Pretrained of_gguf(const std::filesystem::path& path);
  static Pretrained of_folder(const std::filesystem::path& path);
  void pack(models::LlamaImpl& model, state::StoredTensors& rest) const;

  std::filesystem::path path_;
  models::LlamaOptions options_;
  std::vector<data::TokenId> ends_;
  state::StoredTensors tensors_;             // by the model's names
  std::shared_ptr<const state::Gguf> gguf_;  // null for a folder
};

}  // namespace snug::train
