#include "snug/models/llama_json.h"
#include "snug/train/config.h"
#include "snug/train/families/llama_files.h"
#include "snug/train/model_family.h"

namespace snug::train {
namespace {

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
  o.loss = vocabulary_loss(m);
  return llama_model(models::Llama(o));
}

}  // namespace

std::unique_ptr<LanguageModel> llama_model(const models::Llama& model) {
  return std::make_unique<LanguageModel>(
      model.ptr(), [options = model->options()](c10::ScalarType dtype, const std::vector<data::TokenId>& ends) {
        return models::llama_json(options, dtype, ends);
      });
}

const ModelFamily& llama_family() {
  static const ModelFamily family{
      .name = "llama",
      .keys = {{"key_heads", 0, "heads of keys and values; 0: as many as heads", Range{0, 65536}},
               {"rotary_base", 10000.0, "base of the rotary frequencies; more for longer sequences", Range{1}},
               {"inner_width", 0, "features inside the feed-forward part; 0: 8/3 of width, rounded up to 64",
                Range{0, 1048576}}},
      .tiny = {{"key_heads", std::int64_t{1}}},
      .usual_loss = models::TiledLoss{},
      .make = new_llama,
      .check = check_heads,
      .architecture = "llama",
      .open = [](const ModelFiles& files) -> std::unique_ptr<const Pretrained> { return LlamaFiles::open(files); }};
  return family;
}

}  // namespace snug::train
