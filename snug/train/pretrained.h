#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "snug/data/tokenizer.h"
#include "snug/train/choices.h"
#include "snug/train/language_model.h"
#include "snug/train/model_files.h"

namespace snug::train {

/// A pretrained model as its files have it: a GGUF file, or a folder as transformers saves it (config.json,
/// safetensors, tokenizer.json or tokenizer.model). A family derives its own, which ModelFamily::open makes, and
/// reads headers only. That throws UsageError when there is no such file, for architectures that are not known, and
/// when it is not whole; DamagedFile when a file is not what its format says.
class Pretrained {
 public:
  Pretrained(const Pretrained&) = delete;
  Pretrained& operator=(const Pretrained&) = delete;
  virtual ~Pretrained() = default;

  /// The model with its weights, kept as model.weights says and with the loss that model.loss asks for. Throws
  /// UsageError that lists all tensors that are missing, left over or of another shape, and for Packed when the file
  /// has no blocks.
  [[nodiscard]] virtual std::unique_ptr<LanguageModel> model(const ModelConfig& config) const = 0;
  /// Different tokens of the model.
  [[nodiscard]] virtual std::int64_t vocabulary() const = 0;
  /// The longest sequence that it was made for.
  [[nodiscard]] virtual std::int64_t longest() const = 0;

  [[nodiscard]] const std::filesystem::path& path() const { return files_.path(); }

  /// Its tokenizer. Throws UsageError when there is none, it is of a kind that is not known, or it has more tokens than
  /// the model.
  [[nodiscard]] std::unique_ptr<const data::Tokenizer> tokenizer() const;

  /// Throws UsageError when a tokenizer has more tokens than the model. `from`: where it is from.
  void check_fits(const data::Tokenizer& tokenizer, const std::filesystem::path& from) const;

  /// Sizes and samples of its files, to tell whether they were replaced.
  [[nodiscard]] std::string fingerprint() const;

  /// Tokens that end a text; may be empty.
  [[nodiscard]] const std::vector<data::TokenId>& ends() const { return ends_; }
  /// Of a GGUF file: the token that begins a text, where it names one.
  [[nodiscard]] std::optional<data::TokenId> begin() const;

 protected:
  explicit Pretrained(ModelFiles files);

  [[nodiscard]] const ModelFiles& files() const { return files_; }

 private:
  ModelFiles files_;
  std::vector<data::TokenId> ends_;
};

}  // namespace snug::train
