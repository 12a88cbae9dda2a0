#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace snug::models {

// The parameter that a tensor of a file of BERT holds (see bert.h), for each module: one file has the encoder and heads
// of several kinds, of which a module takes its own. Older files say "gamma" and "beta" for the weight and bias of a
// norm, and have a buffer of positions. nullopt for what the module has no use for, the tied output projection among
// it; a name that is unknown is returned as it is.

/// Of Bert with the pooler, from a file of any of the modules: "bert.pooler.dense.bias" is "pooler.dense.bias".
std::optional<std::string> bert_encoder_name(std::string_view name);

/// Of BertMaskedLm.
std::optional<std::string> bert_masked_lm_name(std::string_view name);

/// Of BertClassifier.
std::optional<std::string> bert_classifier_name(std::string_view name);

}  // namespace snug::models
