#include "snug/models/causal_lm.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <utility>

#include "snug/base/errors.h"
#include "snug/base/module_scope.h"
#include "snug/models/module_path.h"
#include "snug/ops/dropout.h"
#include "snug/ops/packed_linear.h"

namespace snug::models {

CausalLmImpl::CausalLmImpl(DecoderParts parts) : parts_(std::move(parts)) {}

void CausalLmImpl::register_blocks(const std::string& path) {
  for (std::size_t i = 0; i < parts_.blocks.size(); ++i) {
    register_at(*this, fmt::format("{}.{}", path, i), parts_.blocks[i]);
  }
}

Task CausalLmImpl::task() const { return Task::causal_lm(); }

std::int64_t CausalLmImpl::vocabulary() const { return ops::rows_of(output_matrix()); }

ops::Matrix CausalLmImpl::output_matrix() const {
  return parts_.head ? parts_.head->matrix() : parts_.tokens->matrix();
}

at::Tensor CausalLmImpl::forward(const at::Tensor& tokens, KeyValueCache* cache) {
  return logits(hidden(tokens, cache));
}

at::Tensor CausalLmImpl::forward_last(const at::Tensor& tokens, KeyValueCache* cache) {
  return logits(hidden(tokens, cache).narrow(1, tokens.size(1) - 1, 1)).squeeze(1);
}

at::Tensor CausalLmImpl::hidden(const at::Tensor& tokens, KeyValueCache* cache) { return run(tokens, cache, nullptr); }

at::Tensor CausalLmImpl::logits(const at::Tensor& hidden) {
  const ModuleScope scope("lm_head");
  if (parts_.head) return parts_.head(hidden);
  const ops::Matrix embedding = parts_.tokens->matrix();
  const auto* const packed = std::get_if<ops::PackedMatrix>(&embedding);
  return packed != nullptr ? ops::packed_linear(hidden, *packed) : at::linear(hidden, std::get<at::Tensor>(embedding));
}

at::Tensor CausalLmImpl::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  return loss_of(run(tokens, nullptr, nullptr), targets);
}

at::Tensor CausalLmImpl::loss(const at::Tensor& tokens, const at::Tensor& targets, const DocumentRows& rows) {
  return loss_of(run(tokens, nullptr, &rows), targets);
}

at::Tensor CausalLmImpl::loss_of(at::Tensor hidden, const at::Tensor& targets) {
  const auto* const tile = std::get_if<TiledLoss>(&parts_.loss);
  if (tile != nullptr && !output_adapted()) {
    const ModuleScope scope("loss");
    return ops::linear_cross_entropy(hidden, output_matrix(), targets, {.tile = *tile, .scale = loss_scale_});
  }
  const at::Tensor all = logits(hidden);
  hidden = at::Tensor();  // not to be there beside the logits' softmax
  const ModuleScope scope("loss");
  return plain_loss(all, targets);
}

at::Tensor CausalLmImpl::embed(const at::Tensor& tokens, const DocumentRows* rows, BlockInput& input) {
  if (const auto* const learned = std::get_if<LearnedPositions>(&parts_.positions)) {
    const at::Tensor& table = learned->table->weight;
    const at::Tensor x = rows != nullptr ? parts_.tokens(tokens) + at::embedding(table, rows->positions)
                                         : parts_.tokens(tokens) + table.narrow(0, input.seen, tokens.size(1));
    return ops::dropout(x, is_training() ? learned->dropout : 0);
  }
  const at::Tensor x = parts_.tokens(tokens);
  // In the type of the weights, and not that of autocast, as the reference has it.
  RotaryTable table =
      rotary_table(std::get<RotaryOptions>(parts_.positions), input.seen, tokens.size(1), tokens.device());
  table = {table.cosines.to(x.scalar_type()), table.sines.to(x.scalar_type())};
  if (rows != nullptr) {
    const auto at_positions = [&](const at::Tensor& t) { return at::embedding(t, rows->positions).unsqueeze(1); };
    table = {at_positions(table.cosines), at_positions(table.sines)};
  }
  input.rotary = std::move(table);
  return x;
}

at::Tensor CausalLmImpl::run(const at::Tensor& tokens, KeyValueCache* cache, const DocumentRows* rows) {
  BlockInput input{
      .seen = cache == nullptr ? 0 : cache->length, .method = attention_, .feed_forward_rows = feed_forward_rows_};
  if (const std::int64_t length = input.seen + tokens.size(1); length > parts_.sequence) {
    throw UsageError(fmt::format("{}: a sequence of {} is longer than the model's {}; cut it", parts_.family, length,
                                 parts_.sequence));
  }
  if (cache != nullptr) cache->layers.resize(parts_.blocks.size());
  if (rows != nullptr) input.mask = rows->mask;
  at::Tensor x = embed(tokens, rows, input);
  for (std::size_t i = 0; i < parts_.blocks.size(); ++i) {
    const ModuleScope scope(fmt::format("{}.{}", parts_.blocks_scope, i));
    if (cache != nullptr) input.cache = &cache->layers[i];
    x = parts_.blocks[i]->forward(std::move(x), input);
  }
  if (cache != nullptr) cache->length += tokens.size(1);
  return std::visit([&](auto& norm) { return norm(x); }, parts_.norm);
}

}  // namespace snug::models
