#include "snug/train/pretrained.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/text_file.h"
#include "snug/data/gguf_vocabulary.h"
#include "snug/data/tokenizer_json.h"
#include "snug/memory/tag.h"
#include "snug/models/embedding.h"
#include "snug/models/gguf_names.h"
#include "snug/models/llama_json.h"
#include "snug/models/parameter.h"
#include "snug/state/load_weights.h"
#include "snug/state/manifest.h"
#include "snug/state/safetensors.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHead = "lm_head.weight";
constexpr std::string_view kRotaryFactors = "rope_freqs.weight";

[[noreturn]] void refuse(const fs::path& path, const std::string& what) {
  throw UsageError(fmt::format("model: {}: {}", path.string(), what));
}

/// Numbers and lists in the metadata of a GGUF file.
class Metadata {
 public:
  Metadata(const state::GgufHeader& header, const fs::path& path) : header_(header), path_(path) {}

  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key) const {
    if (const auto* const u = header_.find<std::uint64_t>(key)) {
      if (*u > std::uint64_t{1} << 40) refuse(path_, fmt::format("its {} is {}", key, *u));
      return static_cast<std::int64_t>(*u);
    }
    if (const auto* const i = header_.find<std::int64_t>(key)) return *i;
    return std::nullopt;
  }
  [[nodiscard]] std::int64_t needed(std::string_view key) const {
    const auto value = integer(key);
    if (!value || *value < 1) refuse(path_, fmt::format("it has no {}, or none above zero", key));
    return *value;
  }
  [[nodiscard]] double number(std::string_view key, double otherwise) const {
    const auto* const value = header_.find<double>(key);
    return value != nullptr ? *value : otherwise;
  }
  [[nodiscard]] std::string text(std::string_view key, std::string_view otherwise) const {
    const auto* const value = header_.find<std::string>(key);
    return value != nullptr ? *value : std::string(otherwise);
  }
  [[nodiscard]] bool flag(std::string_view key) const {
    const auto* const value = header_.find<bool>(key);
    return value != nullptr && *value;
  }

 private:
  const state::GgufHeader& header_;
  const fs::path& path_;
};

models::RotaryScaling scaling_of(const Metadata& metadata, const state::Gguf& gguf, std::int64_t sequence,
                                 const fs::path& path) {
  if (const auto factors = gguf.tensors.find(kRotaryFactors); factors != gguf.tensors.end()) {
    return models::DividedFrequencies{factors->second.read().to(at::kFloat)};
  }
  const std::string kind = metadata.text("llama.rope.scaling.type", "none");
  const double factor = metadata.number("llama.rope.scaling.factor", 1);
  if (kind == "none") return models::NoScaling{};
  if (kind == "linear") return models::LinearScaling{factor};
  if (kind == "yarn") {
    const auto trained = metadata.integer("llama.rope.scaling.original_context_length");
    return models::YarnScaling{.factor = factor, .trained_length = trained.value_or(sequence)};
  }
  refuse(path, fmt::format("its rotary scaling is \"{}\"; known are none, linear and yarn", kind));
}

models::LlamaOptions options_of(const state::Gguf& gguf, const fs::path& path) {
  const Metadata m(gguf.header, path);
  if (const std::string kind = m.text("general.architecture", ""); kind != "llama") {
    refuse(path, fmt::format("its architecture is \"{}\", and the known one is llama", kind));
  }
  models::LlamaOptions o;
  o.layers = m.needed("llama.block_count");
  o.width = m.needed("llama.embedding_length");
  o.inner_width = m.needed("llama.feed_forward_length");
  o.heads = m.needed("llama.attention.head_count");
  o.key_heads = m.integer("llama.attention.head_count_kv").value_or(o.heads);
  o.sequence = m.needed("llama.context_length");
  o.norm_epsilon = m.number("llama.attention.layer_norm_rms_epsilon", 1e-5);
  o.rotary.width = m.integer("llama.rope.dimension_count").value_or(o.width / o.heads);
  o.rotary.base = m.number("llama.rope.freq_base", 10000);
  o.rotary.scaling = scaling_of(m, gguf, o.sequence, path);
  const auto embedding = gguf.tensors.find("token_embd.weight");
  if (embedding == gguf.tensors.end() || embedding->second.shape.size() != 2) {
    refuse(path, "it has no matrix token_embd.weight");
  }
  o.vocabulary = embedding->second.shape[0];
  o.tied = !gguf.tensors.contains("output.weight");
  return o;
}

/// Rows of a matrix of the file in the model's order.
at::Tensor in_order(const at::Tensor& rows, std::string_view name, std::int64_t head_width) {
  if (!models::gguf_reorders_rows(name)) return rows;
  std::vector<std::int64_t> order(static_cast<std::size_t>(rows.size(0)));
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = models::llama_row_of_gguf(static_cast<std::int64_t>(i), head_width);
  }
  return rows.index_select(0, at::tensor(order));
}

/// Only whole heads have an order.
bool has_order(const std::vector<std::int64_t>& shape, std::int64_t head_width) {
  return shape.size() == 2 && head_width > 0 && shape[0] % head_width == 0;
}

bool is_packed(ops::BlockFormat format) { return ops::block_layout(format).elements > 1; }

std::string contents(const fs::path& path) try {
  return read_text(path);
} catch (const std::system_error& error) {
  refuse(path, fmt::format("it cannot be read: {}; name a GGUF file, or a folder as transformers saves it",
                           error.code().message()));
}

/// Ids in a config.json: one, a list, or none.
std::vector<data::TokenId> ends_of_json(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::vector<data::TokenId> ends;
  if (!json.is_object() || !json.contains("eos_token_id")) return ends;
  const nlohmann::json& value = json["eos_token_id"];
  for (const nlohmann::json& id : value.is_array() ? value : nlohmann::json::array({value})) {
    if (id.is_number_integer()) ends.push_back(id.get<data::TokenId>());
  }
  return ends;
}

data::GgufVocabulary vocabulary_of(const state::GgufHeader& header, const fs::path& path) {
  const Metadata m(header, path);
  const auto list = [&]<class T>(std::string_view key, std::vector<T>& out) {
    if (const auto* const found = header.find<std::vector<T>>(key)) out = *found;
  };
  data::GgufVocabulary v;
  v.model = m.text("tokenizer.ggml.model", "");
  v.pre = m.text("tokenizer.ggml.pre", "");
  list("tokenizer.ggml.tokens", v.tokens);
  list("tokenizer.ggml.merges", v.merges);
  list("tokenizer.ggml.token_type", v.types);
  v.begin = m.integer("tokenizer.ggml.bos_token_id");
  v.add_begin = m.flag("tokenizer.ggml.add_bos_token");
  return v;
}

}  // namespace

Pretrained Pretrained::open(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) ? of_folder(path) : of_gguf(path);
}

Pretrained Pretrained::of_gguf(const fs::path& path) {
  Pretrained p;
  p.path_ = path;
  auto gguf = std::make_shared<state::Gguf>(state::open_gguf(path));
  p.options_ = options_of(*gguf, path);
  const std::int64_t head = p.options_.rotary.width;
  for (const auto& [name, tensor] : gguf->tensors) {
    if (name == kRotaryFactors) continue;
    const std::string own = models::llama_name_of_gguf(name).value_or(name);
    state::StoredTensor stored = tensor;
    if (models::gguf_reorders_rows(own) && has_order(tensor.shape, head)) {
      stored.read = [read = tensor.read, own, head] { return in_order(read(), own, head); };
    }
    p.tensors_.emplace(own, std::move(stored));
  }
  const Metadata m(gguf->header, path);
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    if (const auto end = m.integer(key)) p.ends_.push_back(*end);
  }
  p.gguf_ = std::move(gguf);
  return p;
}

Pretrained Pretrained::of_folder(const fs::path& path) {
  Pretrained p;
  p.path_ = path;
  const fs::path config = path / "config.json";
  const std::string text = contents(config);
  p.options_ = models::llama_options_of_json(text, config.string());
  p.ends_ = ends_of_json(text);
  for (auto& [name, tensor] : state::open_sharded_safetensors(path)) {
    // Older files have the tied weight twice, and tables that the model makes itself.
    if ((p.options_.tied && name == kHead) || name.ends_with("rotary_emb.inv_freq")) continue;
    p.tensors_.emplace(name, tensor);
  }
  return p;
}

models::Llama Pretrained::load(BaseWeights weights) const {
  if (std::cmp_greater(options_.layers, tensors_.size())) {
    refuse(path_, fmt::format("it says of itself that it has {} layers, and has {} tensors", options_.layers,
                              tensors_.size()));
  }
  const memory::TagScope tag(memory::Tag::Weights);
  const models::ShapesOnlyScope shapes_only(weights == BaseWeights::Bf16 ? at::kBFloat16 : at::kFloat);
  models::Llama model(options_);
  state::StoredTensors rest = tensors_;
  if (weights == BaseWeights::Packed) pack(*model, rest);
  state::load_weights(*model, rest, path_.string());
  return model;
}

void Pretrained::pack(models::LlamaImpl& model, state::StoredTensors& rest) const {
  if (gguf_ == nullptr) refuse(path_, "it has no blocks to keep; packed weights come from a GGUF file");
  bool any = false;
  for (const auto& [file_name, blocks] : gguf_->blocks) {
    const auto name = models::llama_name_of_gguf(file_name);
    if (!name || !is_packed(blocks.format) || blocks.shape.size() != 2 || !name->ends_with(".weight")) continue;
    const std::string module_name = name->substr(0, name->size() - std::string_view(".weight").size());
    const auto all = model.named_modules("", /*include_self=*/false);
    if (!all.contains(module_name)) continue;
    const ops::PackedMatrix file_order = ops::packed_matrix(blocks.format, blocks.shape, blocks.bytes);
    // A copy: mapped pages would be memory that no budget counts.
    const auto packed = [&] {
      const at::Tensor ordered = has_order(blocks.shape, options_.rotary.width)
                                     ? in_order(file_order.blocks, *name, options_.rotary.width)
                                     : file_order.blocks;
      return ops::PackedMatrix{blocks.format, ordered.is_same(file_order.blocks) ? ordered.clone() : ordered};
    };
    const auto fits = [&](const ops::Matrix& own) {
      return ops::rows_of(own) == file_order.rows() && ops::columns_of(own) == file_order.columns();
    };
    // What does not fit is left to load_weights, which lists it.
    if (auto linear = std::dynamic_pointer_cast<models::LinearImpl>(all[module_name])) {
      if (!fits(linear->matrix())) continue;
      linear->pack(packed());
    } else if (auto embedding = std::dynamic_pointer_cast<models::EmbeddingImpl>(all[module_name])) {
      if (!fits(embedding->matrix())) continue;
      embedding->pack(packed());
    } else {
      continue;
    }
    rest.erase(*name);
    any = true;
  }
  if (!any) refuse(path_, "none of its weights are in blocks; load them in fp32 or bf16");
}

std::string Pretrained::fingerprint() const {
  constexpr std::streamsize kSample = 1 << 16;
  std::vector<fs::path> files;
  std::error_code error;
  if (fs::is_directory(path_, error)) {
    for (fs::directory_iterator entry(path_, error); !error && entry != fs::directory_iterator();
         entry.increment(error)) {
      if (entry->path().extension() == ".safetensors") files.push_back(entry->path());
    }
    std::ranges::sort(files);
  } else {
    files.push_back(path_);
  }
  std::string sampled;
  for (const fs::path& file : files) {
    std::string head(kSample, '\0');
    std::ifstream in(file, std::ios::binary);
    in.read(head.data(), kSample);
    head.resize(static_cast<std::size_t>(in.gcount()));
    sampled += fmt::format("{}:", fs::file_size(file, error)) + head;
  }
  return fmt::format(", {} files, {}", files.size(), state::hash_of(sampled));
}

data::Tokenizer Pretrained::tokenizer() const {
  const auto made = [&]() -> data::Tokenizer {
    if (gguf_ != nullptr) {
      return data::BytePairTokenizer(data::byte_pair_model(vocabulary_of(gguf_->header, path_), path_.string()));
    }
    if (const fs::path model = path_ / "tokenizer.model"; fs::exists(model)) {
      return data::SentencePieceTokenizer::open(model, {.begin = true});
    }
    return data::BytePairTokenizer(data::read_tokenizer_json(path_ / "tokenizer.json"));
  };
  data::Tokenizer tokenizer = made();
  if (const auto tokens = data::size(tokenizer); tokens > options_.vocabulary) {
    refuse(path_, fmt::format("its tokenizer has {} tokens and the model {}; they do not belong together", tokens,
                              options_.vocabulary));
  }
  return tokenizer;
}

}  // namespace snug::train
