#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "snug/data/batch.h"
#include "snug/data/tokenizer.h"
#include "snug/models/causal_lm.h"
#include "snug/models/generation.h"
#include "snug/state/divided_tensors.h"
#include "snug/train/config.h"

namespace snug::train {

class Pretrained;

/// A decoder as the command trains it, with what its family knows of it beside.
class LanguageModel {
 public:
  /// Throws UsageError for a model that has no form there.
  using ConfigJson = std::function<std::string(c10::ScalarType dtype, const std::vector<data::TokenId>& ends)>;

  /// `config_json`: empty for families of which transformers has no such file.
  explicit LanguageModel(std::shared_ptr<models::CausalLmImpl> model, ConfigJson config_json = {})
      : model_(std::move(model)), config_json_(std::move(config_json)) {}

  [[nodiscard]] torch::nn::Module& module() const { return *model_; }
  /// Mean cross-entropy of a batch, as the model defines it: a scalar on the autograd graph.
  [[nodiscard]] at::Tensor loss(const data::Batch& batch) const;
  /// As models::CausalLmImpl has it.
  void expect_loss_scale(at::Tensor scale) const { model_->expect_loss_scale(std::move(scale)); }
  models::ModelInParts divide(const models::LayerParts& parts) const { return model_->divide(parts); }
  models::ModelInParts divide_sequences(const ops::LayerGroup& group, models::ContextMethod method) const {
    return model_->divide_sequences(group, method);
  }
  models::ModelInStages keep_stages(const std::vector<int>& blocks, const std::vector<int>& stages) const {
    return model_->keep_stages(blocks, stages);
  }
  [[nodiscard]] models::CausalLmImpl::Work work() const { return model_->work(); }
  /// As models::CausalLmImpl::run_stage; the last one has the loss.
  [[nodiscard]] at::Tensor run_stage(int stage, const at::Tensor& input, const data::Batch& batch) const;
  void feed_forward_by(std::int64_t rows) const { model_->feed_forward_by(rows); }
  void attend_by(models::AttentionMethod method) const { model_->attend_by(method); }
  /// Different tokens.
  [[nodiscard]] std::int64_t vocabulary() const { return model_->vocabulary(); }
  /// Whether an adapter adds to its output projection.
  [[nodiscard]] bool output_adapted() const { return model_->output_adapted(); }
  /// The longest sequence that it takes.
  [[nodiscard]] std::int64_t longest() const { return model_->sequence(); }

  /// As models::generate.
  [[nodiscard]] std::vector<data::TokenId> generate(const std::vector<data::TokenId>& prompt,
                                                    const models::GenerationOptions& options,
                                                    const std::function<void(data::TokenId token)>& seen = {}) const {
    return models::generate(*model_, prompt, options, seen);
  }
  /// The text of the config.json that transformers reads; nullopt for models that it has no such file of.
  [[nodiscard]] std::optional<std::string> config_json(c10::ScalarType dtype,
                                                       const std::vector<data::TokenId>& ends) const {
    return config_json_ ? std::optional(config_json_(dtype, ends)) : std::nullopt;
  }

 private:
  std::shared_ptr<models::CausalLmImpl> model_;
  ConfigJson config_json_;
};

/// What model.loss asks for.
models::VocabularyLoss vocabulary_loss(const ModelConfig& model);

/// Sets model.kind to what the files of model.path are, where there are any and the user has named no kind. Throws
/// UsageError for files that cannot be read, or of a kind that is not known.
void take_kind_of_files(Config& config);

/// The files of model.path; null when the configuration names none. Throws UsageError when they are of another kind
/// than model.kind, and as Pretrained says.
std::unique_ptr<const Pretrained> open_pretrained(const Config& config);

/// The model that model.* describes (`pretrained`: its files, or null): made anew, or with the weights of its files.
/// With lora.adapter or a lora.rank above zero it has adapters, and nothing else trains. Throws UsageError as the parts
/// do.
std::unique_ptr<LanguageModel> make_model(const Config& config, const Pretrained* pretrained);

/// The token behind every document of a text: the tokenizer's own, if it is one at which generation stops, else the
/// first of the model's ends. nullopt where neither is known, and for bytes.
std::optional<data::TokenId> end_of_documents(const Config& config, const Pretrained* pretrained,
                                              const data::Tokenizer& tokenizer);

/// What data.tokenizer names. Throws UsageError when it cannot be read, or has more tokens than a pretrained model.
std::unique_ptr<const data::Tokenizer> make_tokenizer(const Config& config, const Pretrained* pretrained);

/// Adds the adapter in a folder as PEFT saves it. Throws UsageError when it is for another model, listing all that does
/// not fit, or is none.
void load_adapter(torch::nn::Module& model, const std::filesystem::path& folder);

/// Writes the model's adapter as PEFT would, with the settings that it was made or loaded with. `base`: the name of the
/// model it is for. Throws UsageError when the model has none.
void save_adapter(const torch::nn::Module& model, const std::string& base, const std::filesystem::path& folder);
/// The same, of `tensors`: the adapter's, and those of the modules that train whole beside it.
void save_adapter(const torch::nn::Module& model, const std::string& base, const std::filesystem::path& folder,
                  const state::NamedSources& tensors);

}  // namespace snug::train
