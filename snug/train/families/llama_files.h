#pragma once

#include "snug/models/llama.h"
#include "snug/state/stored_tensor.h"
#include "snug/train/pretrained.h"

namespace snug::train {

/// A pretrained model of the Llama family.
class LlamaFiles final : public Pretrained {
 public:
  /// Throws as Pretrained says.
  static std::unique_ptr<const LlamaFiles> open(const ModelFiles& files);

  [[nodiscard]] const models::LlamaOptions& options() const { return options_; }

  /// What model() is of.
  [[nodiscard]] models::Llama load(BaseWeights weights, const models::VocabularyLoss& loss = models::TiledLoss{}) const;

  [[nodiscard]] std::unique_ptr<LanguageModel> model(const ModelConfig& config) const override;
  [[nodiscard]] std::int64_t vocabulary() const override { return options_.vocabulary; }
  [[nodiscard]] std::int64_t longest() const override { return options_.sequence; }

 private:
  LlamaFiles(ModelFiles files, models::LlamaOptions options);
  void take_gguf();
  void take_folder();
  /// Throws UsageError for a tied head that is in the file and is not the embedding.
  void check_tied_head() const;
  void pack(models::LlamaImpl& model, state::StoredTensors& rest) const;

  models::LlamaOptions options_;
  state::StoredTensors tensors_;  // by the model's names
  std::optional<state::StoredTensor> tied_head_;
};

/// A model of the family, to train and to ask.
std::unique_ptr<LanguageModel> llama_model(const models::Llama& model);

}  // namespace snug::train
