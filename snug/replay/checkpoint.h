#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "snug/replay/region.h"

namespace snug {

/// Runs function(arguments...) and returns its result; what autograd saves inside is dropped and made again in
/// backward. Any arguments and any result. The function is called once: its operators are replayed, so random
/// numbers, running statistics, hooks and control flow are what they were. See Region for the contract.
/// The name and the meaning are those of torch.utils.checkpoint.checkpoint (use_reentrant=False).
template <class Function, class... Arguments>
decltype(auto) checkpoint(Function&& function, Arguments&&... arguments) {
  const Region region(Recompute{});
  return std::invoke(std::forward<Function>(function), std::forward<Arguments>(arguments)...);
}

namespace replay {
/// [begin, end) of each segment of checkpoint_sequential: functions / segments each, the last takes the rest. Throws
/// UsageError unless 1 <= segments <= functions.
std::vector<std::pair<std::size_t, std::size_t>> sequential_segments(std::size_t functions, std::int64_t segments);

template <class Layer>
at::Tensor call_layer(Layer& layer, at::Tensor x) {
  if constexpr (requires { layer.forward(x); }) {
    return layer.forward(std::move(x));
  } else if constexpr (requires { layer.template forward<at::Tensor>(x); }) {
    return layer.template forward<at::Tensor>(std::move(x));
  } else {
    return layer(std::move(x));
  }
}
}  // namespace replay

/// Runs the layers one after the other, dividing them into `segments` of equal length that are checkpointed, except
/// the last, which backward needs first anyway. `layers` is any sized range of callables Tensor -> Tensor, of modules,
/// or a torch::nn::Sequential (pass *sequential). Semantics of torch.utils.checkpoint.checkpoint_sequential.
template <class Layers>
at::Tensor checkpoint_sequential(Layers& layers, std::int64_t segments, at::Tensor x) {
  const auto first = std::begin(layers);
  const auto ranges =
      replay::sequential_segments(static_cast<std::size_t>(std::distance(first, std::end(layers))), segments);
  const auto run = [&](std::pair<std::size_t, std::size_t> range, at::Tensor y) {
    for (std::size_t i = range.first; i < range.second; ++i) {
      y = replay::call_layer(*std::next(first, static_cast<std::ptrdiff_t>(i)), std::move(y));
    }
    return y;
  };
  for (std::size_t i = 0; i + 1 < ranges.size(); ++i) x = checkpoint(run, ranges[i], std::move(x));
  return run(ranges.back(), std::move(x));
}

}  // namespace snug
