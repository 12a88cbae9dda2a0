#include "snug/models/bert_names.h"

#include <fmt/format.h>

namespace snug::models {
namespace {

constexpr std::string_view kEncoder = "bert.";
constexpr std::string_view kPooler = "bert.pooler.";
constexpr std::string_view kPretrainingHeads = "cls.";
constexpr std::string_view kPredictions = "cls.predictions.";
constexpr std::string_view kDecoder = "cls.predictions.decoder.";  // the token embedding, and predictions.bias again
constexpr std::string_view kClassifier = "classifier.";

std::optional<std::string> replaced_end(std::string_view name, std::string_view end, std::string_view by) {
  if (!name.ends_with(end)) return std::nullopt;
  return fmt::format("{}{}", name.substr(0, name.size() - end.size()), by);
}

/// As new files have it; nullopt for a buffer.
std::optional<std::string> current(std::string_view name) {
  if (name.ends_with("embeddings.position_ids")) return std::nullopt;
  if (auto weight = replaced_end(name, "LayerNorm.gamma", "LayerNorm.weight")) return weight;
  if (auto bias = replaced_end(name, "LayerNorm.beta", "LayerNorm.bias")) return bias;
  return std::string(name);
}

}  // namespace

std::optional<std::string> bert_encoder_name(std::string_view name) {
  if (name.starts_with(kPretrainingHeads) || name.starts_with(kClassifier)) return std::nullopt;
  if (name.starts_with(kEncoder)) name.remove_prefix(kEncoder.size());
  return current(name);
}

std::optional<std::string> bert_masked_lm_name(std::string_view name) {
  const bool other_head = name.starts_with(kPretrainingHeads) && !name.starts_with(kPredictions);
  if (other_head || name.starts_with(kDecoder) || name.starts_with(kPooler) || name.starts_with(kClassifier)) {
    return std::nullopt;
  }
  return current(name);
}

std::optional<std::string> bert_classifier_name(std::string_view name) {
  if (name.starts_with(kPretrainingHeads)) return std::nullopt;
  return current(name);
}

}  // namespace snug::models
