#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "snug/base/gguf_metadata.h"
#include "snug/base/json_field.h"
#include "snug/data/tokenizer.h"
#include "snug/state/gguf.h"

namespace snug::train {

/// The files of a pretrained model, opened as far as it takes to tell whose they are: a GGUF file, or a folder as
/// transformers saves it, of which config.json is read. Copies share what is open. What says something else than it
/// should is a UsageError.
class ModelFiles {
 public:
  /// Throws UsageError when there is no such file or config.json is no JSON; DamagedFile when a GGUF file is not what
  /// its format says.
  explicit ModelFiles(std::filesystem::path path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Null for a folder.
  [[nodiscard]] const state::Gguf* gguf() const { return gguf_.get(); }
  /// Of a GGUF file: its metadata.
  [[nodiscard]] GgufFields metadata() const;
  /// Of a folder: config.json.
  [[nodiscard]] JsonField config() const { return config_->root(); }

  /// What they call their kind of model: general.architecture of a GGUF file, model_type in config.json.
  [[nodiscard]] std::string architecture() const;
  /// Tokens that end a text; may be empty. Of a folder: those of generation_config.json, by which transformers
  /// generates; where that names none, those of config.json.
  [[nodiscard]] std::vector<data::TokenId> ends() const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const state::Gguf> gguf_;
  std::shared_ptr<const JsonFile> config_;
};

}  // namespace snug::train
