#include <torch/types.h>

#include <utility>

#include "snug/data/packed_dataset.h"
#include "snug/models/generation.h"
#include "snug/models/llama_json.h"
#include "snug/train/config.h"
#include "snug/train/families/llama_files.h"
#include "snug/train/model_family.h"

namespace snug::train {
namespace {

class LlamaModel final : public LanguageModel {
 public:
  explicit LlamaModel(models::Llama model) : model_(std::move(model)) {}

  [[nodiscard]] torch::nn::Module& module() const override { return *model_.ptr(); }
  [[nodiscard]] at::Tensor loss(const data::Batch& batch) const override {
    models::LlamaImpl& model = *model_.ptr();
    if (!batch.documents.defined()) return model.loss(batch.input, batch.target);
    return model.loss(batch.input, batch.target, {batch.positions, data::document_mask(batch.documents)});
  }
  [[nodiscard]] std::int64_t vocabulary() const override { return model_->options().vocabulary; }
  [[nodiscard]] std::int64_t longest() const override { return model_->options().sequence; }
  std::vector<data::TokenId> generate(const std::vector<data::TokenId>& prompt,
                                      const models::GenerationOptions& options,
                                      const std::function<void(data::TokenId)>& seen) const override {
    return models::generate(*model_.ptr(), prompt, options, seen);
  }
  [[nodiscard]] std::optional<std::string> config_json(c10::ScalarType dtype,
                                                       const std::vector<data::TokenId>& ends) const override {
    return models::llama_json(model_->options(), dtype, ends);
  }

 private:
  models::Llama model_;
};

std::unique_ptr<LanguageModel> new_llama(const ModelConfig& m) {
  const std::int64_t inner_width = m.own.integer("inner_width"), key_heads = m.own.integer("key_heads");
  models::LlamaOptions o;
  o.layers = m.blocks;
  o.width = m.width;
  // Two thirds of four times the width, as three matrices take the place of two.
  o.inner_width = inner_width > 0 ? inner_width : (m.width * 8 / 3 + 63) / 64 * 64;
  o.heads = m.heads;
  o.key_heads = key_heads > 0 ? key_heads : m.heads;
  o.vocabulary = m.vocabulary;
  o.sequence = m.sequence;
  o.rotary.width = m.width / m.heads;
  o.rotary.base = m.own.number("rotary_base");
  o.tied = true;
  return llama_model(models::Llama(o));
}

std::unique_ptr<LanguageModel> tiny_llama() {
  models::LlamaOptions o{.layers = 1, .width = 32, .inner_width = 64, .heads = 2, .key_heads = 1, .vocabulary = 256};
  o.sequence = 16;
  o.rotary.width = 16;
  return llama_model(models::Llama(o));
}

}  // namespace

std::unique_ptr<LanguageModel> llama_model(models::Llama model) {
  return std::make_unique<LlamaModel>(std::move(model));
}

const ModelFamily& llama_family() {
  static const ModelFamily family{
      .name = "llama",
      .keys = {{"key_heads", 0, "heads of keys and values; 0: as many as heads", Range{0, 65536}},
               {"rotary_base", 10000.0, "base of the rotary frequencies; more for longer sequences", Range{1}},
               {"inner_width", 0, "features inside the feed-forward part; 0: 8/3 of width, rounded up to 64",
                Range{0, 1048576}}},
      .rows = ModelFamily::Rows::Documents,
      .make = new_llama,
      .tiny = tiny_llama,
      .open = [](const std::filesystem::path& path) -> std::unique_ptr<const Pretrained> {
        return LlamaFiles::open(path);
      }};
  return family;
}

}  // namespace snug::train
