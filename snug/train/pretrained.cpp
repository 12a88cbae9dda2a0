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
#include "snug/data/tokenizer_json.h"
#include "snug/memory/tag.h"
#include "snug/models/embedding.h"
#include "snug/models/gguf_names.h"
#include "snug/models/llama_json.h"
#include "snug/models/parameter.h"
#include "snug/state/load_weights.h"
#include "snug/state/manifest.h"
#include "snug/state/safetensors.h"
#include "snug/train/gguf_model.h"
#include "snug/train/refuse_model.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHead = "lm_head.weight";

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

std::string contents(const fs::path& path) {
  try {
    return read_text(path);
  } catch (const std::system_error& error) {
    refuse_model(path, fmt::format("it cannot be read: {}; name a GGUF file, or a folder as transformers saves it",
                                   error.code().message()));
  }
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

/// Tokens of a folder beside its tokenizer.model would be cut up as text.
void refuse_added_tokens(const fs::path& folder, std::int64_t known) {
  const fs::path file = folder / "added_tokens.json";
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return;
  const auto added = nlohmann::json::parse(contents(file), nullptr, /*allow_exceptions=*/false);
  if (!added.is_object()) throw UsageError(fmt::format("tokenizer: {}: it is no JSON object", file.string()));
  for (const auto& [token, id] : added.items()) {
    if (!id.is_number_integer() || id < known) continue;
    throw UsageError(
        fmt::format("tokenizer: {} adds \"{}\", token {}, to the {} of tokenizer.model, which is not supported; for "
                    "text without such tokens set data.tokenizer = \"{}\"",
                    file.string(), token, id.get<std::int64_t>(), known, (folder / "tokenizer.model").string()));
  }
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
  p.options_ = llama_options_of_gguf(*gguf, path);
  const std::int64_t head = p.options_.rotary.width;
  for (const auto& [name, tensor] : gguf->tensors) {
    if (name == kGgufRotaryFactors) continue;
    const std::string own = models::llama_name_of_gguf(name).value_or(name);
    state::StoredTensor stored = tensor;
    if (models::gguf_reorders_rows(own) && has_order(tensor.shape, head)) {
      stored.read = [read = tensor.read, own, head] { return in_order(read(), own, head); };
    }
    p.tensors_.emplace(own, std::move(stored));
  }
  p.ends_ = ends_of_gguf(gguf->header, path);
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

models::Llama Pretrained::load(BaseWeights weights, models::VocabularyLoss loss) const {
  if (std::cmp_greater(options_.layers, tensors_.size())) {
    refuse_model(path_, fmt::format("it says of itself that it has {} layers, and has {} tensors", options_.layers,
                                    tensors_.size()));
  }
  const memory::TagScope tag(memory::Tag::Weights);
  const models::ShapesOnlyScope shapes_only(weights == BaseWeights::Bf16 ? at::kBFloat16 : at::kFloat);
  models::LlamaOptions options = options_;
  options.loss = loss;
  models::Llama model(options);
  state::StoredTensors rest = tensors_;
  if (weights == BaseWeights::Packed) pack(*model, rest);
  state::load_weights(*model, rest, path_.string());
  return model;
}

void Pretrained::pack(models::LlamaImpl& model, state::StoredTensors& rest) const {
  if (gguf_ == nullptr) refuse_model(path_, "it has no blocks to keep; packed weights come from a GGUF file");
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
  if (!any) refuse_model(path_, "none of its weights are in blocks; load them in fp32 or bf16");
}

std::string Pretrained::fingerprint() const {
  // All over a file: its beginning may be a vocabulary, the same in each model of a family.
  constexpr std::uintmax_t kSamples = 256, kSample = 4096;
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
    const std::uintmax_t size = fs::file_size(file, error);
    sampled += fmt::format("{}:", size);
    std::ifstream in(file, std::ios::binary);
    std::string sample(kSample, '\0');
    for (std::uintmax_t i = 0; i < kSamples && i * kSample < size; ++i) {
      in.clear();
      in.seekg(static_cast<std::streamoff>(std::max(i * kSample, size / kSamples * i)));
      in.read(sample.data(), kSample);
      sampled.append(sample, 0, static_cast<std::size_t>(in.gcount()));
    }
  }
  return fmt::format(", {} files, {}", files.size(), state::hash_of(sampled));
}

void Pretrained::check_fits(const data::Tokenizer& tokenizer, const fs::path& from) const {
  if (const auto tokens = data::size(tokenizer); tokens > options_.vocabulary) {
    throw UsageError(fmt::format("tokenizer: that of {} has {} tokens and the model {}; they do not belong together",
                                 from.string(), tokens, options_.vocabulary));
  }
}

data::Tokenizer Pretrained::tokenizer() const {
  const auto made = [&]() -> data::Tokenizer {
    if (gguf_ != nullptr) {
      return tokenizer_of_gguf(gguf_->header, path_);
    }
    if (const fs::path model = path_ / "tokenizer.model"; fs::exists(model)) {
      data::SentencePieceTokenizer pieces = data::SentencePieceTokenizer::open(model, {.begin = true});
      refuse_added_tokens(path_, pieces.size());
      return pieces;
    }
    return data::BytePairTokenizer(data::read_tokenizer_json(path_ / "tokenizer.json"));
  };
  data::Tokenizer tokenizer = made();
  check_fits(tokenizer, path_);
  return tokenizer;
}

}  // namespace snug::train
