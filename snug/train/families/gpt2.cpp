#include "snug/models/gpt2.h"

#include "snug/train/config.h"
#include "snug/train/language_model.h"
#include "snug/train/model_family.h"
#include "snug/train/pretrained.h"

namespace snug::train {
namespace {

/// With the names of transformers' GPT2LMHeadModel, and dropout in attention too.
class Gpt2Model final : public LanguageModel {
 public:
  explicit Gpt2Model(const models::Gpt2Options& options) : model_(options) {}

  [[nodiscard]] torch::nn::Module& module() const override { return *model_.ptr(); }
  [[nodiscard]] at::Tensor loss(const data::Batch& batch) const override {
    return model_.ptr()->loss(batch.input, batch.target);
  }
  [[nodiscard]] std::int64_t vocabulary() const override { return model_->options().vocabulary; }
  [[nodiscard]] std::int64_t longest() const override { return model_->options().sequence; }

 private:
  models::Gpt2 model_;
};

std::unique_ptr<LanguageModel> new_gpt2(const ModelConfig& m) {
  const double dropout = m.own.number("dropout");
  return std::make_unique<Gpt2Model>(models::Gpt2Options{.layers = m.blocks,
                                                         .width = m.width,
                                                         .inner_width = 4 * m.width,
                                                         .heads = m.heads,
                                                         .vocabulary = m.vocabulary,
                                                         .sequence = m.sequence,
                                                         .embedding_dropout = dropout,
                                                         .residual_dropout = dropout,
                                                         .attention_dropout = dropout});
}

std::unique_ptr<LanguageModel> tiny_gpt2() {
  return std::make_unique<Gpt2Model>(
      models::Gpt2Options{.layers = 1, .width = 32, .inner_width = 128, .heads = 2, .vocabulary = 256, .sequence = 16});
}

}  // namespace

const ModelFamily& gpt2_family() {
  static const ModelFamily family{.name = "gpt2", .keys = {kDropout}, .make = new_gpt2, .tiny = tiny_gpt2};
  return family;
}

}  // namespace snug::train
