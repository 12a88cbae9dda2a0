#include "snug/models/gpt.h"

namespace snug::models {

Gpt2Options as_gpt2(const GptOptions& o) {
  return {.layers = o.blocks,
          .width = o.width,
          .inner_width = 4 * o.width,
          .heads = o.heads,
          .vocabulary = o.vocabulary,
          .sequence = o.sequence,
          .embedding_dropout = o.dropout,
          .residual_dropout = o.dropout,
          .attention_dropout = 0,
          .layout = Gpt2Layout::Flat,
          .loss = o.loss};
}

}  // namespace snug::models
