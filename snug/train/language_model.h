#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "snug/data/text_dataset.h"
#include "snug/data/tokenizer.h"
#include "snug/models/causal_lm.h"
#include "snug/train/config.h"
#include "snug/train/pretrained.h"

namespace snug::train {

using LanguageModel = std::shared_ptr<models::CausalLmImpl>;

/// What model.loss asks for, of a model of that kind.
models::VocabularyLoss vocabulary_loss(const ModelConfig& model);

torch::nn::Module& module_of(const LanguageModel& model);
/// Mean cross-entropy of a batch, as the models define it.
at::Tensor loss_of(const LanguageModel& model, const data::Batch& batch);
/// Different tokens.
std::int64_t vocabulary_of(const LanguageModel& model);

/// The longest sequence that it takes.
std::int64_t longest_of(const LanguageModel& model);

/// The files of model.path; nullopt when the configuration names none.
std::optional<Pretrained> open_pretrained(const Config& config);

/// The model that model.* describes: made anew, or with the weights of its files. With lora.adapter or a lora.rank
/// above zero it has adapters, and nothing else trains. Throws UsageError as the parts do.
LanguageModel make_model(const Config& config, const std::optional<Pretrained>& pretrained);

/// The token behind every document of a text: the tokenizer's own, if it is one at which generation stops, else the
/// first of the model's ends. nullopt where neither is known, and for bytes.
std::optional<data::TokenId> end_of_documents(const Config& config, const std::optional<Pretrained>& pretrained,
                                              const data::Tokenizer& tokenizer);

/// What data.tokenizer names. Throws UsageError when it cannot be read, or has more tokens than a pretrained model.
data::Tokenizer make_tokenizer(const Config& config, const std::optional<Pretrained>& pretrained);

/// Adds the adapter in a folder as PEFT saves it. Throws UsageError when it is for another model, listing all that does
/// not fit, or is none.
void load_adapter(torch::nn::Module& model, const std::filesystem::path& folder);

/// Writes the model's adapter as PEFT would, with the settings that it was made or loaded with. `base`: the name of the
/// model it is for. Throws UsageError when the model has none.
void save_adapter(const torch::nn::Module& model, const std::string& base, const std::filesystem::path& folder);

}  // namespace snug::train
