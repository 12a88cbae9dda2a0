#include "snug/train/families/llama_files.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <string_view>
#include <utility>

#include "snug/memory/tag.h"
#include "snug/models/embedding.h"
#include "snug/models/gguf_names.h"
#include "snug/models/llama_json.h"
#include "snug/models/parameter.h"
#include "snug/state/load_weights.h"
#include "snug/state/weights_in.h"
#include "snug/train/families/llama_gguf.h"
#include "snug/train/refuse_model.h"

namespace snug::train {
namespace {

constexpr std::string_view kHead = "lm_head.weight", kEmbedding = "model.embed_tokens.weight";

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

}  // namespace

LlamaFiles::LlamaFiles(ModelFiles files, models::LlamaOptions options)
    : Pretrained(std::move(files)), options_(std::move(options)) {}

std::unique_ptr<const LlamaFiles> LlamaFiles::open(const ModelFiles& files) {
  if (const state::Gguf* const gguf = files.gguf()) {
    std::unique_ptr<LlamaFiles> opened(new LlamaFiles(files, llama_options_of_gguf(*gguf, files.metadata())));
    opened->take_gguf();
    return opened;
  }
  std::unique_ptr<LlamaFiles> opened(new LlamaFiles(files, models::llama_options_of_json(files.config())));
  opened->take_folder();
  return opened;
}

void LlamaFiles::take_gguf() {
  const std::int64_t head = options_.rotary.width;
  for (const auto& [name, tensor] : files().gguf()->tensors) {
    if (name == kGgufRotaryFactors) continue;
    const std::string own = models::llama_name_of_gguf(name).value_or(name);
    state::StoredTensor stored = tensor;
    if (models::gguf_reorders_rows(own) && has_order(tensor.shape, head)) {
      stored.read = [read = tensor.read, own, head] { return in_order(read(), own, head); };
    }
    tensors_.emplace(own, std::move(stored));
  }
}

void LlamaFiles::take_folder() {
  for (auto& [name, tensor] : state::open_weights_in(path())) {
    // Older files have the tied weight twice, and tables that the model makes itself.
    if (name.ends_with("rotary_emb.inv_freq")) continue;
    if (options_.tied && name == kHead) {
      tied_head_ = tensor;
    } else {
      tensors_.emplace(name, tensor);
    }
  }
}

void LlamaFiles::check_tied_head() const {
  const auto embedding = tensors_.find(kEmbedding);
  if (!tied_head_ || embedding == tensors_.end()) return;
  const bool is_alike = tied_head_->dtype == embedding->second.dtype && tied_head_->shape == embedding->second.shape;
  if (is_alike && at::equal(tied_head_->read(), embedding->second.read())) return;
  refuse_model(path(), fmt::format("its config.json says that {} is {} (tie_word_embeddings), and its file has another "
                                   "one; set tie_word_embeddings to false there, or take that tensor out of the file",
                                   kHead, kEmbedding));
}

std::unique_ptr<LanguageModel> LlamaFiles::model(const ModelConfig& config) const {
  return llama_model(load(config.weights, vocabulary_loss(config)));
}

models::Llama LlamaFiles::load(BaseWeights weights, const models::VocabularyLoss& loss) const {
  if (std::cmp_greater(options_.layers, tensors_.size())) {
    refuse_model(path(), fmt::format("it says of itself that it has {} layers, and has {} tensors", options_.layers,
                                     tensors_.size()));
  }
  check_tied_head();
  const memory::TagScope tag(memory::Tag::Weights);
  const models::ShapesOnlyScope shapes_only(weights == BaseWeights::Bf16 ? at::kBFloat16 : at::kFloat);
  models::LlamaOptions options = options_;
  options.loss = loss;
  models::Llama model(options);
  state::StoredTensors rest = tensors_;
  if (weights == BaseWeights::Packed) pack(*model, rest);
  state::load_weights(*model, rest, path().string());
  return model;
}

void LlamaFiles::pack(models::LlamaImpl& model, state::StoredTensors& rest) const {
  const state::Gguf* const gguf = files().gguf();
  if (gguf == nullptr) refuse_model(path(), "it has no blocks to keep; packed weights come from a GGUF file");
  bool any = false;
  for (const auto& [file_name, blocks] : gguf->blocks) {
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
  if (!any) refuse_model(path(), "none of its weights are in blocks; load them in fp32 or bf16");
}

}  // namespace snug::train
