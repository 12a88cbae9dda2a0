#include "snug/models/causal_lm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/module_scope.h"
#include "snug/models/lora.h"
#include "snug/models/module_path.h"
#include "snug/ops/dropout.h"
#include "snug/ops/packed_linear.h"

namespace snug::models {
namespace {

constexpr std::int64_t kSequence = 1;    // the dimension of (batch, sequence, ...)
constexpr std::int64_t kIgnored = -100;  // no target

}  // namespace

CausalLmImpl::CausalLmImpl(DecoderParts parts) : parts_(std::move(parts)) {}

void CausalLmImpl::register_blocks(const std::string& path) {
  for (std::size_t i = 0; i < parts_.blocks.size(); ++i) {
    register_at(*this, fmt::format("{}.{}", path, i), parts_.blocks[i]);
  }
}

Task CausalLmImpl::task() const { return Task::causal_lm(); }

std::int64_t CausalLmImpl::vocabulary() const {
  return in_parts_ ? in_parts_->vocabulary : ops::rows_of(output_matrix());
}

ops::Matrix CausalLmImpl::output_matrix() const {
  return parts_.head ? parts_.head->matrix() : parts_.tokens->matrix();
}

at::Tensor CausalLmImpl::forward(const at::Tensor& tokens, KeyValueCache* cache) {
  return logits(hidden(tokens, cache));
}

at::Tensor CausalLmImpl::forward_last(const at::Tensor& tokens, KeyValueCache* cache) {
  if (context_ && cache == nullptr)
    throw UsageError(fmt::format("context parallel: {}: the last token is in one process alone", parts_.family));
  return logits(hidden(tokens, cache).narrow(1, tokens.size(1) - 1, 1)).squeeze(1);
}

at::Tensor CausalLmImpl::hidden(const at::Tensor& tokens, KeyValueCache* cache) { return run(tokens, cache, nullptr); }

at::Tensor CausalLmImpl::logits(const at::Tensor& hidden) {
  at::Tensor own = own_logits(hidden);
  if (!in_parts_) return own;
  // The last process may have fewer.
  own = at::constant_pad_nd(own, {0, in_parts_->each - own.size(-1)});
  return ops::all_parts(own, own.dim() - 1, in_parts_->how.group).narrow(-1, 0, in_parts_->vocabulary);
}

at::Tensor CausalLmImpl::own_logits(const at::Tensor& hidden) {
  const ModuleScope scope("lm_head");
  if (parts_.head) return parts_.head(hidden);
  const ops::Matrix embedding = parts_.tokens->matrix();
  const auto* const packed = std::get_if<ops::PackedMatrix>(&embedding);
  return packed != nullptr ? ops::packed_linear(hidden, *packed) : at::linear(hidden, std::get<at::Tensor>(embedding));
}

ModelInParts CausalLmImpl::divide(const LayerParts& parts) {
  const std::int64_t size = parts.group->size(), rank = parts.group->rank(), all = vocabulary();
  const std::int64_t each = (all + size - 1) / size, first = rank * each;
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("tensor parallel: {}: {}", parts_.family, why));
  };
  if (in_parts_ || context_) refuse("it is in parts already");
  if (each * (size - 1) >= all) refuse(fmt::format("{} processes for a vocabulary of {}", size, all));
  if (output_adapted()) refuse("the output projection has an adapter; train it whole, or leave it");
  ModelInParts found = divide_layers(*this, layouts(), heads(), parts);
  const std::int64_t count = std::min(each, all - first);
  if (auto part = parts_.tokens->keep_rows(first, count)) found.divided.push_back(std::move(*part));
  if (auto part = parts_.head ? parts_.head->keep_rows(first, count) : std::nullopt)
    found.divided.push_back(std::move(*part));
  if (parts.sequences()) {
    for (const at::Tensor& one : parameters()) {
      if (part_of(found.divided, one) == nullptr && !is_among(found.summands, one)) found.summands.push_back(one);
    }
  }
  in_parts_ = InParts{parts, first, each, all};
  return found;
}

at::Tensor CausalLmImpl::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  return loss_of(run(tokens, nullptr, nullptr), targets);
}

at::Tensor CausalLmImpl::loss(const at::Tensor& tokens, const at::Tensor& targets, const DocumentRows& rows) {
  return loss_of(run(tokens, nullptr, &rows), targets);
}

ModelInParts CausalLmImpl::divide_sequences(const ops::LayerGroup& group, ContextMethod method) {
  if (in_parts_ || context_)
    throw UsageError(fmt::format("context parallel: {}: it is in parts already", parts_.family));
  if (method == ContextMethod::Heads && heads() % group->size() != 0) {
    throw UsageError(fmt::format(
        "context parallel: {}: {} processes cannot have as many of {} heads each; choose another number of them, or a "
        "ring",
        parts_.family, group->size(), heads()));
  }
  context_ = {group, method};
  return {.summands = parameters(), .divided = {}};
}

/// Of all processes: each has its targets' share of it.
at::Tensor CausalLmImpl::loss_of(at::Tensor hidden, const at::Tensor& targets) {
  if (!context_) return whole_loss_of(std::move(hidden), targets);
  const at::Tensor own = targets.ne(kIgnored).sum().to(at::kFloat), all = context_.group->sum(own);
  const at::Tensor mean = whole_loss_of(std::move(hidden), targets);
  // The mean of no targets is no number.
  return ops::leave_parts(at::where(own.gt(0), mean, at::zeros_like(mean)) * (own / all), context_.group);
}

at::Tensor CausalLmImpl::whole_loss_of(at::Tensor hidden, const at::Tensor& targets) {
  const auto* const tile = std::get_if<TiledLoss>(&parts_.loss);
  if (tile != nullptr && !output_adapted() && !in_parts_) {
    const ModuleScope scope("loss");
    return ops::linear_cross_entropy(hidden, output_matrix(), targets, {.tile = *tile, .scale = loss_scale_});
  }
  const at::Tensor all = own_logits(hidden);
  hidden = at::Tensor();  // not to be there beside the logits' softmax
  const ModuleScope scope("loss");
  return in_parts_ ? ops::loss_in_parts(all, targets, {in_parts_->first, in_parts_->vocabulary}, in_parts_->how.group)
                   : plain_loss(all, targets);
}

at::Tensor CausalLmImpl::vectors(const at::Tensor& tokens) {
  if (!in_parts_) return parts_.tokens(tokens);
  const ops::LayerGroup& group = in_parts_->how.group;
  const bool sequences = in_parts_->how.sequences();
  const at::Tensor own =
      ops::embedding_in_parts(parts_.tokens->matrix(), tokens, {in_parts_->first, in_parts_->vocabulary});
  return sequences ? ops::leave_parts_to(own, kSequence, group) : ops::leave_parts(own, group);
}

at::Tensor CausalLmImpl::embed(const at::Tensor& tokens, const DocumentRows* rows, const BlockInput& input) {
  at::Tensor x = vectors(tokens);
  if (const auto* const learned = std::get_if<LearnedPositions>(&parts_.positions)) {
    // Of x's part of the sequence.
    const std::int64_t count = x.size(1), first = count == tokens.size(1) ? 0 : in_parts_->how.group->rank() * count;
    const at::Tensor& table = learned->table->weight;
    const at::Tensor positions = rows != nullptr ? at::embedding(table, rows->positions.narrow(kSequence, first, count))
                                 : input.context ? take_pieces(table, 0, context_.pieces(tokens.size(1)))
                                                 : table.narrow(0, input.seen + first, count);
    const double dropout = is_training() ? learned->dropout : 0;
    std::optional<RandomOfParts> random;
    if (dropout > 0 && in_parts_ && in_parts_->how.sequences())
      random.emplace(in_parts_->how.group->rank(), x.device());
    return ops::dropout(x + positions, dropout);
  }
  return x;
}

void CausalLmImpl::set_rotary(BlockInput& input, const at::Tensor& tokens, const at::Tensor& x,
                              const DocumentRows* rows) const {
  const auto* const options = std::get_if<RotaryOptions>(&parts_.positions);
  if (options == nullptr) return;
  // In the type of the weights, and not that of autocast, as the reference has it.
  const auto table_of = [&](const Positions& positions) {
    const RotaryTable of_type = rotary_table(*options, positions, tokens.device());
    return RotaryTable{of_type.cosines.to(x.scalar_type()), of_type.sines.to(x.scalar_type())};
  };
  RotaryTable table;
  if (input.context) {
    const auto [begins, each] = context_.pieces(tokens.size(1));
    std::vector<at::Tensor> cosines, sines;
    for (const std::int64_t first : begins) {
      const RotaryTable of_piece = table_of({.first = first, .count = each, .length = context_.whole(tokens.size(1))});
      cosines.push_back(of_piece.cosines), sines.push_back(of_piece.sines);
    }
    table = {cosines.size() == 1 ? cosines[0] : at::cat(cosines), sines.size() == 1 ? sines[0] : at::cat(sines)};
  } else {
    table = table_of({.first = input.seen, .count = tokens.size(1)});
  }
  if (rows != nullptr) {
    const auto at_positions = [&](const at::Tensor& t) { return at::embedding(t, rows->positions).unsqueeze(1); };
    table = {at_positions(table.cosines), at_positions(table.sines)};
  }
  input.rotary = std::move(table);
}

void CausalLmImpl::check_run(const at::Tensor& tokens, const KeyValueCache* cache, const DocumentRows* rows) const {
  const std::int64_t parts = context_ && cache == nullptr ? context_.group->size() : 1,
                     seen = cache != nullptr ? cache->length : 0;
  if (const std::int64_t length = seen + parts * tokens.size(1); length > parts_.sequence) {
    throw UsageError(fmt::format("{}: a sequence of {} is longer than the model's {}; cut it", parts_.family, length,
                                 parts_.sequence));
  }
  if (context_ && rows != nullptr)
    throw UsageError(fmt::format("context parallel: {}: rows of documents need whole sequences", parts_.family));
}

BlockInput CausalLmImpl::input_of(const at::Tensor& tokens, const KeyValueCache* cache,
                                  const DocumentRows* rows) const {
  BlockInput input{
      .seen = cache == nullptr ? 0 : cache->length, .method = attention_, .feed_forward_rows = feed_forward_rows_};
  check_run(tokens, cache, rows);
  if (context_ && cache == nullptr) input.context = context_;
  if (rows != nullptr) input.mask = rows->mask;
  return input;
}

at::Tensor CausalLmImpl::run_blocks(at::Tensor x, BlockInput& input, KeyValueCache* cache, std::size_t first,
                                    std::size_t end) {
  const bool in_parts = in_parts_ && in_parts_->how.between == Between::KeptInParts && at::GradMode::is_enabled();
  for (std::size_t i = first; i < end; ++i) {
    at::Tensor part;  // of none of the blocks: what they begin with
    if (in_parts) part = ops::part_to_keep(x, in_parts_->how.group);
    const ModuleScope scope(fmt::format("{}.{}", parts_.blocks_scope, i));
    if (in_parts) x = ops::keep_in_parts(x, part, in_parts_->how.group);
    if (cache != nullptr) input.cache = &cache->layers[i];
    x = parts_.blocks[i]->forward(std::move(x), input);
  }
  return x;
}

at::Tensor CausalLmImpl::run(const at::Tensor& tokens, KeyValueCache* cache, const DocumentRows* rows) {
  if (in_stages_) throw UsageError(fmt::format("pipeline: {}: it is in stages; run_stage() runs one", parts_.family));
  BlockInput input = input_of(tokens, cache, rows);
  if (cache != nullptr) cache->layers.resize(parts_.blocks.size());
  at::Tensor x = embed(tokens, rows, input);
  set_rotary(input, tokens, x, rows);
  x = run_blocks(std::move(x), input, cache, 0, parts_.blocks.size());
  if (cache != nullptr) cache->length += tokens.size(1);
  return finish(std::move(x));
}

std::optional<std::string> CausalLmImpl::tied_embedding() const {
  if (parts_.head) return std::nullopt;
  for (const auto& p : named_parameters()) {
    if (p.value().is_same(parts_.tokens->weight)) return p.key();
  }
  return std::nullopt;
}

ModelInStages CausalLmImpl::keep_stages(const std::vector<int>& blocks, const std::vector<int>& stages) {
  InStages in{.own = stages, .first_block = {0}};
  for (const int count : blocks) in.first_block.push_back(in.first_block.back() + count);
  if (in.first_block.back() != std::ssize(parts_.blocks) || std::ranges::any_of(blocks, [](int n) { return n < 1; })) {
    throw UsageError(fmt::format("pipeline: {}: stages of {} blocks, and it has {}", parts_.family,
                                 fmt::join(blocks, ", "), parts_.blocks.size()));
  }
  const auto has = [&](std::size_t stage) { return std::ranges::count(stages, static_cast<int>(stage)) > 0; };
  const std::size_t last = blocks.size() - 1;
  const bool is_tied = !parts_.head;
  ModelInStages found;
  if (is_tied && last > 0 && parts_.tokens->weight.defined()) found.shared.push_back(parts_.tokens->weight);
  const auto leave = [&](const torch::nn::Module& module) {
    for (const at::Tensor& one : module.parameters()) found.elsewhere.push_back(keep_nothing(one));
    for (const auto& [name, linear] : linear_modules(module)) linear->drop_packed();
  };
  for (std::size_t stage = 0; stage <= last; ++stage) {
    if (has(stage)) continue;
    for (int i = in.first_block[stage]; i < in.first_block[stage + 1]; ++i)
      leave(*parts_.blocks[static_cast<std::size_t>(i)]);
  }
  if (!has(0) && !(is_tied && has(last))) leave(*parts_.tokens), parts_.tokens->drop_packed();
  if (const auto* const learned = std::get_if<LearnedPositions>(&parts_.positions); learned != nullptr && !has(0))
    leave(*learned->table);
  if (!has(last)) {
    std::visit([&](const auto& norm) { leave(*norm); }, parts_.norm);
    if (parts_.head) leave(*parts_.head), parts_.head->drop_packed();
  }
  in_stages_ = std::move(in);
  return found;
}

at::Tensor CausalLmImpl::run_stage(int stage, at::Tensor input, const at::Tensor& tokens, const at::Tensor& targets,
                                   const DocumentRows* rows) {
  if (!in_stages_ || std::ranges::count(in_stages_->own, stage) == 0)
    throw UsageError(fmt::format("pipeline: {}: stage {} is none of this process's", parts_.family, stage));
  const auto index = static_cast<std::size_t>(stage);
  BlockInput to_blocks = input_of(tokens, nullptr, rows);
  at::Tensor x = stage == 0 ? embed(tokens, rows, to_blocks) : std::move(input);
  set_rotary(to_blocks, tokens, x, rows);
  const std::vector<int>& first = in_stages_->first_block;
  x = run_blocks(std::move(x), to_blocks, nullptr, static_cast<std::size_t>(first.at(index)),
                 static_cast<std::size_t>(first.at(index + 1)));
  return index + 2 < first.size() ? x : loss_of(finish(std::move(x)), targets);
}

CausalLmImpl::Work CausalLmImpl::work() const {
  const auto size_of = [](const LinearImpl& linear) {
    return static_cast<double>(linear.in()) * static_cast<double>(linear.out());
  };
  Work work;
  for (const auto& block : parts_.blocks) {
    double all = 0;
    for (const auto& [name, linear] : linear_modules(*block)) all += size_of(*linear);
    work.blocks.push_back(all);
  }
  work.behind =
      static_cast<double>(ops::rows_of(output_matrix())) * static_cast<double>(ops::columns_of(output_matrix()));
  return work;
}

at::Tensor CausalLmImpl::finish(at::Tensor x) {
  x = std::visit([&](auto& norm) { return norm(x); }, parts_.norm);
  if (!in_parts_) return x;
  const ops::LayerGroup& group = in_parts_->how.group;
  return in_parts_->how.sequences() ? ops::enter_parts_from(x, kSequence, group) : ops::enter_parts(x, group);
}

}  // namespace snug::models
