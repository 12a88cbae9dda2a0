#include "snug/ops/tensor_parallel.h"

#include <ATen/ops/slice_copy.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <utility>

#include "snug/base/errors.h"
#include "snug/ops/held_group.h"
#include "snug/ops/registered.h"

namespace snug::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kIgnored = -100;

void hold(AutogradContext* context, const LayerGroup& group, std::int64_t dimension = 0) {
  hold_group(context, group);
  context->saved_data["dimension"] = dimension;
}
std::int64_t dimension_of(AutogradContext* context) { return context->saved_data["dimension"].toInt(); }

at::Tensor own_part(const at::Tensor& x, std::int64_t dimension, const TensorGroup& group) {
  if (x.size(dimension) % group.size() != 0) {
    throw UsageError(
        fmt::format("tensor parallel: {} along dimension {} of {} cannot be divided evenly among {} processes",
                    x.size(dimension), dimension, c10::str(x.sizes()), group.size()));
  }
  const std::int64_t each = x.size(dimension) / group.size();
  return x.narrow(dimension, group.rank() * each, each).contiguous();
}

// Pairs of what is each other's backward pass.

class Enter : public torch::autograd::Function<Enter> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const LayerGroup& group) {
    hold(context, group);
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    only_once("the beginning of a layer's parts");
    return {held_group(context).sum(gradients[0]), {}};
  }
};

class Leave : public torch::autograd::Function<Leave> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const LayerGroup& group) {
    hold(context, group);  // for replays
    return group->sum(x);
  }
  static variable_list backward(AutogradContext* /*context*/, const variable_list& gradients) {
    return {gradients[0], {}};
  }
};

/// What a process does along a dimension; what another one does is its backward pass.
enum class Way : std::uint8_t { Gather, SumPart, Own };

at::Tensor go(Way way, TensorGroup& group, const at::Tensor& x, std::int64_t dimension) {
  switch (way) {
    case Way::Gather:
      return group.gather(x, dimension);
    case Way::SumPart:
      return group.sum_part(x, dimension);
    case Way::Own:
      return own_part(x, dimension, group);
  }
  throw std::logic_error("tensor parallel: unknown way");
}

template <Way kThere, Way kBack>
class Along : public torch::autograd::Function<Along<kThere, kBack>> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, std::int64_t dimension,
                            const LayerGroup& group) {
    hold(context, group, dimension);
    return go(kThere, *group, x, dimension);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    only_once("what begins or ends a layer's parts");
    return {go(kBack, held_group(context), gradients[0], dimension_of(context)), {}, {}};
  }
};

class KeepInParts : public torch::autograd::Function<KeepInParts> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& part,
                            const LayerGroup& group) {
    hold(context, group);                // for replays
    context->save_for_backward({part});  // until then: what is made of it is
    return group->gather_again(part, x).view(x.sizes());
  }
  static variable_list backward(AutogradContext* /*context*/, const variable_list& gradients) {
    return {gradients[0], {}, {}};
  }
};

class Exchange : public torch::autograd::Function<Exchange> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, std::int64_t divided, std::int64_t gathered,
                            const LayerGroup& group) {
    hold(context, group, divided);
    context->saved_data["gathered"] = gathered;
    return group->exchange(x, divided, gathered);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    only_once("an exchange of parts");
    const std::int64_t gathered = context->saved_data["gathered"].toInt();
    return {held_group(context).exchange(gradients[0], gathered, dimension_of(context)), {}, {}, {}};
  }
};

/// Which of the whole vocabulary this process has, of as many in each.
struct VocabularyRows {
  std::int64_t first, count;
  /// Of each token its row here, 0 of those that others have, and whether it is here.
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> of(const at::Tensor& tokens) const {
    const at::Tensor own = tokens - first;
    const at::Tensor here = own.ge(0).logical_and_(own.lt(count));
    return {own.mul_(here), here};
  }
};

/// Elsewhere nobody would see that they are in no part. On accelerators a look would wait for the stream. `beside`: one
/// that may be there, and is in none.
void check_ids(const at::Tensor& ids, std::int64_t vocabulary, const char* what,
               std::optional<std::int64_t> beside = std::nullopt) {
  if (!ids.device().is_cpu()) return;
  const at::Tensor dense = ids.contiguous();
  const auto* const first = dense.const_data_ptr<std::int64_t>();
  const auto is_none = [&](std::int64_t id) { return (id < 0 || id >= vocabulary) && id != beside; };
  const auto* const found = std::find_if(first, first + dense.numel(), is_none);
  if (found == first + dense.numel()) return;
  throw UsageError(
      fmt::format("tensor parallel: {} {} is not in a vocabulary of {}; look at the data", what, *found, vocabulary));
}

class LossInParts : public torch::autograd::Function<LossInParts> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& targets,
                            std::int64_t first, const LayerGroup& group) {
    const at::Tensor flat = logits.reshape({-1, logits.size(-1)}), wanted = targets.reshape(-1);
    const VocabularyRows rows{.first = first, .count = flat.size(1)};
    const at::Tensor counts = wanted.ne(kIgnored);
    const at::Tensor largest = group->max(flat.amax(1).to(at::kFloat));
    at::Tensor of_target, log_sum;
    {
      const auto [row, here] = rows.of(wanted);
      of_target = group->sum(flat.gather(1, row.unsqueeze(1)).squeeze(1).to(at::kFloat).mul_(here));
      log_sum = group->sum((flat - largest.unsqueeze(1)).exp_().sum(1)).log().add_(largest);
    }
    const at::Tensor count = counts.sum().to(at::kFloat);
    at::Tensor loss = (log_sum - of_target).mul_(counts).sum().div_(count);
    context->save_for_backward({logits, targets, log_sum});
    context->saved_data["first"] = first;
    hold(context, group);  // for replays
    return loss;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    only_once("the loss of a vocabulary in parts");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &logits = saved[0], &log_sum = saved[2];
    const at::Tensor flat = logits.reshape({-1, logits.size(-1)}), wanted = saved[1].reshape(-1);
    const VocabularyRows rows{.first = context->saved_data["first"].toInt(), .count = flat.size(1)};
    const at::Tensor counts = wanted.ne(kIgnored);
    const at::Tensor share = (gradients[0] / counts.sum()).mul(counts);
    at::Tensor gradient = flat.to(at::kFloat).sub(log_sum.unsqueeze(1)).exp_();
    const auto [row, here] = rows.of(wanted);
    gradient.scatter_add_(1, row.unsqueeze(1), here.to(gradient.scalar_type()).neg_().unsqueeze(1));
    gradient.mul_(share.unsqueeze(1));
    return {gradient.to(logits.scalar_type()).view(logits.sizes()), {}, {}, {}};
  }
};

}  // namespace

at::Tensor enter_parts(const at::Tensor& x, const LayerGroup& group) { return Enter::apply(x, group); }
at::Tensor leave_parts(const at::Tensor& x, const LayerGroup& group) { return Leave::apply(x, group); }
at::Tensor enter_parts_from(const at::Tensor& part, std::int64_t dimension, const LayerGroup& group) {
  return Along<Way::Gather, Way::SumPart>::apply(part, dimension, group);
}
at::Tensor leave_parts_to(const at::Tensor& x, std::int64_t dimension, const LayerGroup& group) {
  return Along<Way::SumPart, Way::Gather>::apply(x, dimension, group);
}
at::Tensor part_of(const at::Tensor& x, std::int64_t dimension, const LayerGroup& group) {
  return Along<Way::Own, Way::Gather>::apply(x, dimension, group);
}
at::Tensor all_parts(const at::Tensor& part, std::int64_t dimension, const LayerGroup& group) {
  return Along<Way::Gather, Way::Own>::apply(part, dimension, group);
}

at::Tensor part_to_keep(const at::Tensor& x, const LayerGroup& group) {
  if (x.numel() % group->size() != 0) {
    throw UsageError(
        fmt::format("tensor parallel: the {} elements of a tensor of {} cannot be divided evenly among {} "
                    "processes, of which each is to keep its part",
                    x.numel(), c10::str(x.sizes()), group->size()));
  }
  const at::NoGradGuard no_grad;
  // By numbers, as views at other places would be other steps.
  const std::int64_t each = x.numel() / group->size(), first = group->rank() * each;
  return at::slice_copy(x.reshape({-1}), 0, first, first + each);
}
at::Tensor keep_in_parts(const at::Tensor& x, const at::Tensor& part, const LayerGroup& group) {
  return at::GradMode::is_enabled() ? KeepInParts::apply(x, part, group) : x;
}
at::Tensor keep_in_parts(const at::Tensor& x, const LayerGroup& group) {
  return at::GradMode::is_enabled() ? keep_in_parts(x, part_to_keep(x, group), group) : x;
}

at::Tensor exchange_parts(const at::Tensor& x, std::int64_t divided, std::int64_t gathered, const LayerGroup& group) {
  return Exchange::apply(x, divided, gathered, group);
}

at::Tensor embedding_in_parts(const Matrix& matrix, const at::Tensor& tokens, const VocabularyPart& part) {
  check_ids(tokens, part.all, "token");
  const VocabularyRows rows{.first = part.first, .count = rows_of(matrix)};
  const auto [row, here] = rows.of(tokens);
  const auto* const packed = std::get_if<PackedMatrix>(&matrix);
  const at::Tensor vectors =
      packed != nullptr ? packed_embedding(*packed, row) : at::embedding(std::get<at::Tensor>(matrix), row);
  return vectors.mul(here.unsqueeze(-1));
}

at::Tensor loss_in_parts(const at::Tensor& logits, const at::Tensor& targets, const VocabularyPart& part,
                         const LayerGroup& group) {
  check_ids(targets, part.all, "target", kIgnored);
  return LossInParts::apply(logits, targets, part.first, group);
}

}  // namespace snug::ops
