#include "snug/models/gpt2.h"

#include "snug/train/config.h"
#include "snug/train/language_model.h"
#include "snug/train/model_family.h"
#include "snug/train/pretrained.h"

namespace snug::train {
namespace {

/// With the names of transformers' GPT2LMHeadModel, and dropout in attention too.
std::unique_ptr<LanguageModel> new_gpt2(const ModelConfig& m) {
  const double dropout = m.own.number("dropout");
  const models::Gpt2Options options{.layers = m.blocks,
                                    .width = m.width,
                                    .inner_width = 4 * m.width,
                                    .heads = m.heads,
                                    .vocabulary = m.vocabulary,
                                    .sequence = m.sequence,
                                    .embedding_dropout = dropout,
                                    .residual_dropout = dropout,
                                    .attention_dropout = dropout,
                                    .loss = vocabulary_loss(m)};
  return std::make_unique<LanguageModel>(models::Gpt2(options).ptr());
}

}  // namespace

const ModelFamily& gpt2_family() {
  static const ModelFamily family{.name = "gpt2",
                                  .keys = {kDropout},
                                  .tiny = {{"dropout", 0.1}},
                                  .usual_loss = models::TiledLoss{},
                                  .drops_attention = true,
                                  .make = new_gpt2,
                                  .check = check_heads};
  return family;
}

}  // namespace snug::train
