#include "snug/train/families/llama_gguf.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <cstdint>
#include <string>

namespace snug::train {
namespace {

constexpr Range kGgufCount{.low = 1, .high = 1099511627776};

models::YarnScaling yarn_of(const GgufFields& metadata, double factor, std::int64_t sequence) {
  constexpr const char* kExtrapolation = "llama.rope.scaling.yarn_ext_factor";
  constexpr const char* kAttention = "llama.rope.scaling.yarn_attn_factor";
  if (metadata.optional(kExtrapolation, 1.0) != 1) metadata.refuse(kExtrapolation, "1");
  if (metadata.find<double>(kAttention)) {
    metadata.fail(
        fmt::format("it has {}, which some read in place of YaRN's temperature and some beside it; take the model as "
                    "transformers saves it",
                    kAttention));
  }
  models::YarnScaling s{.factor = factor,
                        .fast_rotations = metadata.optional("llama.rope.scaling.yarn_beta_fast", 32.0),
                        .slow_rotations = metadata.optional("llama.rope.scaling.yarn_beta_slow", 1.0)};
  s.trained_length = metadata.optional("llama.rope.scaling.original_context_length", sequence, kGgufCount);
  // mscale_all_dim, beside an mscale of 1.
  if (const double weight = metadata.optional("llama.rope.scaling.yarn_log_multiplier", 0.0); weight != 0) {
    s.attention_factor = models::yarn_temperature(factor) / models::yarn_temperature(factor, weight);
  }
  return s;
}

models::RotaryScaling scaling_of(const GgufFields& metadata, const state::Gguf& gguf, std::int64_t sequence) {
  constexpr const char* kAmplitude = "llama.rope.scaling.attn_factor";
  if (metadata.optional(kAmplitude, 1.0) != 1) metadata.refuse(kAmplitude, "1");
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
  if (kind == "yarn") return yarn_of(metadata, factor.value_or(1), sequence);
  metadata.refuse(kKind, "one of \"none\", \"linear\", \"yarn\"");
}

/// As wide as keys are, and all of it is rotated. Mistral-Nemo's is not the model's width over its heads.
std::int64_t head_width_of(const GgufFields& metadata, std::int64_t usual) {
  constexpr const char* kRotated = "llama.rope.dimension_count";
  constexpr const char* kValues = "llama.attention.value_length";
  const auto keys = metadata.find<std::int64_t>("llama.attention.key_length", kGgufCount);
  const auto rotated = metadata.find<std::int64_t>(kRotated, kGgufCount);
  const std::int64_t width = keys ? *keys : rotated.value_or(usual);
  if (rotated && *rotated != width)
    metadata.refuse(kRotated, fmt::format("{}, which is llama.attention.key_length", width));
  if (metadata.optional(kValues, width, kGgufCount) != width)
    metadata.refuse(kValues, fmt::format("{}, as keys have it", width));
  return width;
}

}  // namespace

models::LlamaOptions llama_options_of_gguf(const state::Gguf& gguf, const GgufFields& metadata) {
  constexpr const char* kArchitecture = "general.architecture";
  if (metadata.required<std::string>(kArchitecture) != "llama") metadata.refuse(kArchitecture, "\"llama\"");
  const auto count = [&](const char* key) { return metadata.required<std::int64_t>(key, kGgufCount); };
  models::LlamaOptions o;
  // Mixtral's files call themselves "llama", too.
  constexpr const char* kExperts = "llama.expert_count";
  if (metadata.optional(kExperts, std::int64_t{0}) != 0)
    metadata.refuse(kExperts, "0: mixtures of experts are not known");
  o.layers = count("llama.block_count");
  o.width = count("llama.embedding_length");
  o.inner_width = count("llama.feed_forward_length");
  o.heads = count("llama.attention.head_count");
  o.key_heads = metadata.optional("llama.attention.head_count_kv", o.heads, kGgufCount);
  o.sequence = count("llama.context_length");
  o.norm_epsilon = metadata.optional("llama.attention.layer_norm_rms_epsilon", 1e-5, kNotNegative);
  o.rotary.width = head_width_of(metadata, o.width / o.heads);
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
