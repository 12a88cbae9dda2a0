#include "snug/train/families/llama_gguf.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <cstdint>
#include <string>

#include "snug/train/gguf_metadata.h"
#include "snug/train/refuse_model.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;

models::RotaryScaling scaling_of(const GgufMetadata& metadata, const state::Gguf& gguf, std::int64_t sequence,
                                 const fs::path& path) {
  if (const auto factors = gguf.tensors.find(kGgufRotaryFactors); factors != gguf.tensors.end()) {
    return models::DividedFrequencies{factors->second.read().to(at::kFloat)};
  }
  // Older files have the second key; a factor alone is linear.
  auto factor = metadata.number("llama.rope.scaling.factor");
  if (!factor) factor = metadata.number("llama.rope.scale_linear");
  const std::string kind = metadata.text("llama.rope.scaling.type", factor.value_or(0) > 0 ? "linear" : "none");
  if (kind == "none") return models::NoScaling{};
  if (kind == "linear") return models::LinearScaling{factor.value_or(1)};
  if (kind == "yarn") {
    const auto trained = metadata.integer("llama.rope.scaling.original_context_length");
    return models::YarnScaling{.factor = factor.value_or(1), .trained_length = trained.value_or(sequence)};
  }
  refuse_model(path, fmt::format("its rotary scaling is \"{}\"; known are none, linear and yarn", kind));
}

}  // namespace

models::LlamaOptions llama_options_of_gguf(const state::Gguf& gguf, const fs::path& path) {
  const GgufMetadata m(gguf.header, path);
  if (const std::string kind = m.text("general.architecture", ""); kind != "llama") {
    refuse_model(path, fmt::format("its architecture is \"{}\", and the known one is llama", kind));
  }
  models::LlamaOptions o;
  o.layers = m.needed("llama.block_count");
  o.width = m.needed("llama.embedding_length");
  o.inner_width = m.needed("llama.feed_forward_length");
  o.heads = m.needed("llama.attention.head_count");
  o.key_heads = m.integer("llama.attention.head_count_kv").value_or(o.heads);
  o.sequence = m.needed("llama.context_length");
  o.norm_epsilon = m.number("llama.attention.layer_norm_rms_epsilon").value_or(1e-5);
  o.rotary.width = m.integer("llama.rope.dimension_count").value_or(o.width / o.heads);
  o.rotary.base = m.number("llama.rope.freq_base").value_or(10000);
  o.rotary.scaling = scaling_of(m, gguf, o.sequence, path);
  const auto embedding = gguf.tensors.find("token_embd.weight");
  if (embedding == gguf.tensors.end() || embedding->second.shape.size() != 2) {
    refuse_model(path, "it has no matrix token_embd.weight");
  }
  o.vocabulary = embedding->second.shape[0];
  o.tied = !gguf.tensors.contains("output.weight");
  return o;
}

}  // namespace snug::train
