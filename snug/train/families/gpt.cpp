#include "snug/models/gpt.h"

#include "snug/train/config.h"
#include "snug/train/language_model.h"
#include "snug/train/model_family.h"
#include "snug/train/pretrained.h"

namespace snug::train {
namespace {

std::unique_ptr<LanguageModel> new_gpt(const ModelConfig& m) {
  const models::GptOptions options{.blocks = m.blocks,
                                   .width = m.width,
                                   .heads = m.heads,
                                   .sequence = m.sequence,
                                   .vocabulary = m.vocabulary,
                                   .dropout = m.own.number("dropout"),
                                   .loss = vocabulary_loss(m)};
  return std::make_unique<LanguageModel>(models::Gpt(options).ptr());
}

}  // namespace

const ModelFamily& gpt_family() {
  static const ModelFamily family{
      .name = "gpt", .keys = {kDropout}, .tiny = {{"dropout", 0.1}}, .make = new_gpt, .check = check_heads};
  return family;
}

}  // namespace snug::train
