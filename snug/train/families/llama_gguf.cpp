#include "snug/train/families/llama_gguf.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <cstdint>
#include <string>

namespace snug::train {
namespace {

constexpr Range kGgufCount{.low = 1, .high = 1099511627776};

models::RotaryScaling scaling_of(const GgufFields& metadata, const state::Gguf& gguf, std::int64_t sequence) {
  if (const auto factors = gguf.tensors.find(kGgufRotaryFactors); factors != gguf.tensors.end()) {
    return models::DividedFrequencies{factors->second.read().to(at::kFloat)};
  }
  // Older files have the second key; a factor alone is linear.
  auto factor = metadata.find<double>("llama.rope.scaling.factor");
  if (!factor) factor = metadata.find<double>("llama.rope.scale_linear");
  constexpr const char* kKind = "llama.rope.scaling.type";
  const auto kind = metadata.optional<std::string>(kKind, factor.value_or(0) > 0 ? "linear" : "none");
  if (kind == "none") return models::NoScaling{};
  if (kind == "linear") return models::LinearScaling{factor.value_or(1)};
  if (kind == "yarn") {
    const auto trained = metadata.optional("llama.rope.scaling.original_context_length", sequence, kGgufCount);
    return models::YarnScaling{.factor = factor.value_or(1), .trained_length = trained};
  }
  metadata.refuse(kKind, "one of \"none\", \"linear\", \"yarn\"");
}

}  // namespace

models::LlamaOptions llama_options_of_gguf(const state::Gguf& gguf, const GgufFields& metadata) {
  constexpr const char* kArchitecture = "general.architecture";
  if (metadata.required<std::string>(kArchitecture) != "llama") metadata.refuse(kArchitecture, "\"llama\"");
  const auto count = [&](const char* key) { return metadata.required<std::int64_t>(key, kGgufCount); };
  models::LlamaOptions o;
  o.layers = count("llama.block_count");
  o.width = count("llama.embedding_length");
  o.inner_width = count("llama.feed_forward_length");
  o.heads = count("llama.attention.head_count");
  o.key_heads = metadata.optional("llama.attention.head_count_kv", o.heads, kGgufCount);
  o.sequence = count("llama.context_length");
  o.norm_epsilon = metadata.optional("llama.attention.layer_norm_rms_epsilon", 1e-5, kNotNegative);
  o.rotary.width = metadata.optional("llama.rope.dimension_count", o.width / o.heads, kGgufCount);
  o.rotary.base = metadata.optional("llama.rope.freq_base", 10000.0, kPositive);
  o.rotary.scaling = scaling_of(metadata, gguf, o.sequence);
  const auto embedding = gguf.tensors.find("token_embd.weight");
  if (embedding == gguf.tensors.end() || embedding->second.shape.size() != 2) {
    metadata.fail("it has no matrix token_embd.weight; use a GGUF file as llama.cpp writes it");
  }
  o.vocabulary = embedding->second.shape[0];
  o.tied = !gguf.tensors.contains("output.weight");
  return o;
}

}  // namespace snug::train
