#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "snug/data/packed_dataset.h"
#include "snug/data/text_dataset.h"
#include "snug/train/language_model.h"
#include "snug/train/pretrained.h"
#include "snug/train/task.h"

namespace snug::train {

/// Windows of a text, or rows of whole documents.
using Dataset = std::variant<data::TextDataset, data::PackedDataset>;

/// To predict the next token of a text.
class LanguageTask final : public Task {
 public:
  /// `pretrained`: the files of model.path, or null; not needed afterwards. Throws UsageError for a configuration that
  /// cannot be: see TextCorpus::open and TextDataset.
  LanguageTask(const Config& config, const Pretrained* pretrained);

  [[nodiscard]] torch::nn::Module& module() const override { return model_->module(); }
  [[nodiscard]] data::Batch train_batch(std::int64_t step) const override;
  [[nodiscard]] at::Tensor loss(const data::Batch& batch) const override { return model_->loss(batch); }
  [[nodiscard]] std::int64_t validation_batches() const override;
  [[nodiscard]] data::Batch validation_batch(std::int64_t i) const override;
  [[nodiscard]] std::int64_t units_per_step() const override { return tokens_per_step_; }
  [[nodiscard]] double steps_per_epoch() const override;
  [[nodiscard]] const std::string& fingerprint() const override { return fingerprint_; }
  [[nodiscard]] const std::vector<std::string>& notes() const override { return notes_; }

  [[nodiscard]] const LanguageModel& model() const { return *model_; }
  [[nodiscard]] const data::Tokenizer& tokenizer() const { return *tokenizer_; }
  /// Tokens that end a text.
  [[nodiscard]] const std::vector<data::TokenId>& ends() const { return ends_; }
  /// The token that begins a text, as Pretrained::begin has it.
  [[nodiscard]] std::optional<data::TokenId> begin() const { return begin_; }

 private:
  std::string fingerprint_;
  std::vector<std::string> notes_;
  std::vector<data::TokenId> ends_;
  std::optional<data::TokenId> begin_;
  std::unique_ptr<LanguageModel> model_;
  std::unique_ptr<const data::Tokenizer> tokenizer_;
  Dataset dataset_;
  std::int64_t batch_, tokens_per_step_;
};

}  // namespace snug::train
