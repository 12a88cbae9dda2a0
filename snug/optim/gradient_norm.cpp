#include "snug/optim/gradient_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>
#include <optional>

#include "snug/base/errors.h"
#include "snug/base/exact_sum.h"
#include "snug/memory/owned_contents.h"
#include "snug/memory/parallel_for.h"
#include "snug/optim/block_norms.h"
#include "snug/optim/few_bits.h"

namespace snug::optim {
namespace {

constexpr std::int64_t kNormBlocksPerTask = 128;

/// Calls with all elements in the order in which they are in memory, where they are numbers of the CPU.
template <class Call>
bool on_elements(const at::Tensor& tensor, const Call& call) {
  if (!tensor.is_cpu() || tensor.layout() != at::kStrided) return false;
  const at::Tensor dense = tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
  const memory::ContentsThere there(dense.storage());
  const auto count = static_cast<std::size_t>(dense.numel());
  switch (dense.scalar_type()) {
    case at::kFloat:
      return call(std::span(dense.const_data_ptr<float>(), count)), true;
    case at::kDouble:
      return call(std::span(dense.const_data_ptr<double>(), count)), true;
    case at::kBFloat16:
      return call(std::span(dense.const_data_ptr<at::BFloat16>(), count)), true;
    case at::kHalf:
      return call(std::span(dense.const_data_ptr<at::Half>(), count)), true;
    default:
      return false;
  }
}

template <class Work>
void each_task(std::size_t elements, const Work& work) {
  const auto count = static_cast<std::int64_t>(elements);
  memory::parallel_for(
      0, (count + kNormBlock - 1) / kNormBlock, kNormBlocksPerTask, [&](std::int64_t first, std::int64_t end) {
        work(static_cast<std::size_t>(first * kNormBlock), static_cast<std::size_t>(std::min(end * kNormBlock, count)));
      });
}

/// All at once, but for those that are not all in memory at once: one after the other.
std::vector<at::Tensor> in_groups_of_room(const std::vector<at::Tensor>& tensors, double order,
                                          std::optional<at::ScalarType> dtype) {
  if (std::ranges::none_of(tensors, memory::has_owner)) return at::_foreach_norm(tensors, order, dtype);
  std::vector<at::Tensor> norms;
  for (const at::Tensor& tensor : tensors)
    norms.push_back(at::linalg_vector_norm(tensor, order, std::nullopt, false, dtype));
  return norms;
}

/// The norms of tensors that are not on the CPU, in one go.
std::vector<double> norms_of(const std::vector<at::Tensor>& tensors, double order) {
  if (tensors.empty()) return {};
  const auto dtype = std::ranges::any_of(tensors, has_few_bits) ? std::optional(at::kFloat) : std::nullopt;
  std::vector<at::Tensor> norms;
  for (const at::Tensor& norm : in_groups_of_room(tensors, order, dtype))
    norms.push_back(norm.to(tensors.front().device()));
  const at::Tensor all = at::stack(norms).to(at::kDouble).cpu();
  return {all.const_data_ptr<double>(), all.const_data_ptr<double>() + all.numel()};
}

double sum_of(const std::vector<at::Tensor>& tensors, Amount amount, const OtherParts& others) {
  const double order = amount == Amount::Square ? 2 : 1;
  std::mutex mutex;
  ExactSum all;
  std::vector<at::Tensor> elsewhere;
  for (const at::Tensor& tensor : tensors) {
    const bool done = on_elements(tensor, [&](auto elements) {
      each_task(elements.size(), [&](std::size_t first, std::size_t end) {
        ExactSum some;
        add_blocks(elements.subspan(first, end - first), amount, [&](double block) { some.add(block); });
        const std::lock_guard lock(mutex);
        all.add(some);
      });
    });
    if (!done) elsewhere.push_back(tensor);
  }
  for (const double norm : norms_of(elsewhere, order)) all.add(std::pow(norm, order));
  if (others.add_up) others.add_up(all.numbers());
  return amount == Amount::Square ? std::sqrt(all.value()) : all.value();
}

double largest_of(const std::vector<at::Tensor>& tensors, const OtherParts& others) {
  std::mutex mutex;
  // Bits of doubles that are not negative are in the order of what they stand for, NaN behind all.
  std::int64_t largest = 0;
  const auto take = [&](double amount) {
    const std::lock_guard lock(mutex);
    largest = std::max(largest, std::bit_cast<std::int64_t>(std::abs(amount)));
  };
  std::vector<at::Tensor> elsewhere;
  for (const at::Tensor& tensor : tensors) {
    const bool done = on_elements(tensor, [&](auto elements) {
      each_task(elements.size(), [&](std::size_t first, std::size_t end) {
        take(largest_amount(elements.subspan(first, end - first)));
      });
    });
    if (!done) elsewhere.push_back(tensor);
  }
  for (const double norm : norms_of(elsewhere, std::numeric_limits<double>::infinity())) take(norm);
  if (others.largest) others.largest({&largest, 1});
  return std::bit_cast<double>(largest);
}

}  // namespace

double joint_norm(const std::vector<at::Tensor>& tensors, double order, const OtherParts& others) {
  const at::NoGradGuard no_grad;
  if (order == 2) return sum_of(tensors, Amount::Square, others);
  if (order == 1) return sum_of(tensors, Amount::Absolute, others);
  if (std::isinf(order) && order > 0) return largest_of(tensors, others);
  throw UsageError(fmt::format("optim: a norm of order {:g}; it must be 1, 2 or infinity", order));
}

}  // namespace snug::optim
