#include <utility>

#include "snug/models/gpt.h"
#include "snug/train/config.h"
#include "snug/train/language_model.h"
#include "snug/train/model_family.h"
#include "snug/train/pretrained.h"

namespace snug::train {
namespace {

class GptModel final : public LanguageModel {
 public:
  explicit GptModel(const models::GptOptions& options) : model_(options) {}

  [[nodiscard]] torch::nn::Module& module() const override { return *model_.ptr(); }
  [[nodiscard]] at::Tensor loss(const data::Batch& batch) const override {
    return model_.ptr()->loss(batch.input, batch.target);
  }
  [[nodiscard]] std::int64_t vocabulary() const override { return model_->options().vocabulary; }
  [[nodiscard]] std::int64_t longest() const override { return model_->options().sequence; }

 private:
  models::Gpt model_;
};

std::unique_ptr<LanguageModel> new_gpt(const ModelConfig& m) {
  return std::make_unique<GptModel>(
      models::GptOptions{m.blocks, m.width, m.heads, m.sequence, m.vocabulary, m.own.number("dropout")});
}

std::unique_ptr<LanguageModel> tiny_gpt() {
  return std::make_unique<GptModel>(
      models::GptOptions{.blocks = 1, .width = 32, .heads = 2, .sequence = 16, .vocabulary = 256, .dropout = 0.1});
}

}  // namespace

const ModelFamily& gpt_family() {
  static const ModelFamily family{.name = "gpt", .keys = {kDropout}, .make = new_gpt, .tiny = tiny_gpt};
  return family;
}

}  // namespace snug::train
