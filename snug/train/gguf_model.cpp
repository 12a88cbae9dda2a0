#include "snug/train/gguf_model.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "snug/train/refuse_model.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;

/// A default is for a key that is not there, and not for one that says something else.
class Metadata {
 public:
  Metadata(const state::GgufHeader& header, const fs::path& path) : header_(header), path_(path) {}

  [[nodiscard]] bool has(std::string_view key) const { return header_.metadata.contains(key); }

  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key) const {
    if (const auto* const u = header_.find<std::uint64_t>(key)) {
      if (*u > std::uint64_t{1} << 40) refuse_model(path_, fmt::format("its {} is {}", key, *u));
      return static_cast<std::int64_t>(*u);
    }
    const auto* const i = get<std::int64_t>(key, "one integer");
    return i != nullptr ? std::optional(*i) : std::nullopt;
  }
  [[nodiscard]] std::int64_t needed(std::string_view key) const {
    const auto value = integer(key);
    if (!value || *value < 1) refuse_model(path_, fmt::format("it has no {}, or none above zero", key));
    return *value;
  }
  [[nodiscard]] std::optional<double> number(std::string_view key) const {
    if (header_.find<std::uint64_t>(key) != nullptr || header_.find<std::int64_t>(key) != nullptr) {
      return static_cast<double>(*integer(key));
    }
    const auto* const value = get<double>(key, "one number");
    return value != nullptr ? std::optional(*value) : std::nullopt;
  }
  [[nodiscard]] std::string text(std::string_view key, std::string_view otherwise) const {
    const auto* const value = get<std::string>(key, "text");
    return value != nullptr ? *value : std::string(otherwise);
  }
  [[nodiscard]] std::optional<bool> flag(std::string_view key) const {
    const auto* const value = get<bool>(key, "true or false");
    return value != nullptr ? std::optional(*value) : std::nullopt;
  }
  template <class T>
  [[nodiscard]] std::vector<T> list(std::string_view key) const {
    const auto* const found = header_.find<std::vector<T>>(key);
    return found != nullptr ? *found : std::vector<T>();
  }

 private:
  template <class T>
  const T* get(std::string_view key, std::string_view what) const {
    const T* const value = header_.find<T>(key);
    if (value == nullptr && has(key)) refuse_model(path_, fmt::format("its {} is not {}", key, what));
    return value;
  }

  const state::GgufHeader& header_;
  const fs::path& path_;
};

models::RotaryScaling scaling_of(const Metadata& metadata, const state::Gguf& gguf, std::int64_t sequence,
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
  const Metadata m(gguf.header, path);
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

data::GgufVocabulary vocabulary_of_gguf(const state::GgufHeader& header, const fs::path& path) {
  const Metadata m(header, path);
  data::GgufVocabulary v;
  v.model = m.text("tokenizer.ggml.model", "");
  v.pre = m.text("tokenizer.ggml.pre", "");
  v.tokens = m.list<std::string>("tokenizer.ggml.tokens");
  v.merges = m.list<std::string>("tokenizer.ggml.merges");
  v.types = m.list<std::int64_t>("tokenizer.ggml.token_type");
  v.begin = m.integer("tokenizer.ggml.bos_token_id");
  v.add_begin = m.flag("tokenizer.ggml.add_bos_token");
  return v;
}

data::Tokenizer tokenizer_of_gguf(const state::GgufHeader& header, const fs::path& path) {
  return data::BytePairTokenizer(data::byte_pair_model(vocabulary_of_gguf(header, path), path.string()));
}

std::vector<data::TokenId> ends_of_gguf(const state::GgufHeader& header, const fs::path& path) {
  const Metadata m(header, path);
  std::vector<data::TokenId> ends;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    if (const auto end = m.integer(key)) ends.push_back(*end);
  }
  return ends;
}

}  // namespace snug::train
