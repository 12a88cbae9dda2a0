#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <concepts>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

#include "snug/base/errors.h"
#include "snug/replay/region.h"
#include "snug/replay/rerun.h"
#include "snug/replay/rerun_frame.h"
#include "snug/replay/saved_tensor_hooks.h"
#include "snug/replay/tensors_in.h"

namespace snug {

/// Backward replays the operators that the function ran. `region` says what is dropped (see Region).
struct Replay {
  RegionAction region = Recompute{};
  RegionOptions options = {};
};

struct CheckpointOptions {
  std::variant<Replay, Rerun> mode = Replay{};
};

/// Runs function(arguments...) and returns its result; what autograd saves inside is dropped and made again in
/// backward. Any arguments and any result. The function is called once: its operators are replayed, so random
/// numbers, running statistics, hooks and control flow are what they were. See Region for the contract.
/// The name and the meaning are those of torch.utils.checkpoint.checkpoint (use_reentrant=False).
template <class Function, class... Arguments>
requires std::invocable<Function, Arguments...>
decltype(auto) checkpoint(Function&& function, Arguments&&... arguments) {
  const Region region(Recompute{}, {.place = typeid(Function).hash_code()});
  return std::invoke(std::forward<Function>(function), std::forward<Arguments>(arguments)...);
}

namespace replay {

/// A function with copies of its arguments, whose tensors are elsewhere between calls. Types as they were forwarded.
template <class Function, class... Arguments>
class CallAgain {
 public:
  explicit CallAgain(const std::decay_t<Function>& function, const std::decay_t<Arguments>&... arguments)
      : function_(function), arguments_(arguments...) {}

  /// The tensors among the arguments, which are taken out.
  std::vector<at::Tensor> take_tensors() {
    std::vector<at::Tensor> tensors;
    for_each_tensor(arguments_, [&](at::Tensor& t) { tensors.push_back(std::exchange(t, at::Tensor())); });
    return tensors;
  }

  void operator()(const std::vector<at::Tensor>& tensors) {
    auto all = arguments_;
    std::size_t next = 0;
    for_each_tensor(all, [&](at::Tensor& t) { t = tensors[next++]; });
    auto function = function_;  // one that changes itself begins anew every time
    std::apply([&](auto&... a) { std::invoke(function, forwarded<Arguments>(a)...); }, all);
  }

 private:
  /// The copy as its original was handed in; what decayed (an array to a pointer) as it is.
  template <class Argument, class Copy>
  static decltype(auto) forwarded(Copy& copy) {
    if constexpr (std::is_same_v<std::remove_cvref_t<Argument>, Copy>) {
      return static_cast<Argument&&>(copy);
    } else {
      return static_cast<Copy&>(copy);
    }
  }

  std::decay_t<Function> function_;
  std::tuple<std::decay_t<Arguments>...> arguments_;
};

template <class Function, class... Arguments>
decltype(auto) checkpoint_in(const Replay& options, Function&& function, Arguments&&... arguments) {
  RegionOptions region_options = options.options;
  if (region_options.place == 0) region_options.place = typeid(Function).hash_code();
  const Region region(options.region, region_options);
  return std::invoke(std::forward<Function>(function), std::forward<Arguments>(arguments)...);
}

template <class Function, class... Arguments>
decltype(auto) checkpoint_in(const Rerun& options, Function&& function, Arguments&&... arguments) {
  std::optional<RerunFrameScope> scope;
  if (at::GradMode::is_enabled()) {
    require_saved_tensor_hooks();
    constexpr bool kCopies = std::is_copy_constructible_v<std::decay_t<Function>> &&
                             (std::is_copy_constructible_v<std::decay_t<Arguments>> && ...);
    if constexpr (kCopies) {
      const auto again = std::make_shared<CallAgain<Function, Arguments...>>(function, arguments...);
      const auto tensors = again->take_tensors();
      scope.emplace(std::make_shared<RerunFrame>([again](const std::vector<at::Tensor>& now) { (*again)(now); },
                                                 tensors, options));
    } else {
      throw UsageError(
          "checkpoint: a rerun needs a function and arguments that can be copied; hand them in by std::shared_ptr, or "
          "use Replay");
    }
  }
  return std::invoke(std::forward<Function>(function), std::forward<Arguments>(arguments)...);
}

}  // namespace replay

/// The same with a choice of how backward gets back what was dropped. With Rerun the function and its arguments are
/// copied (what an ArrayRef or a pointer points to must live until backward), and it is called again in backward, with
/// copies of them, this thread's state (precision, grad mode) and, if asked for, random numbers as they were.
template <class Function, class... Arguments>
requires std::invocable<Function, Arguments...>
auto checkpoint(const CheckpointOptions& options, Function&& function, Arguments&&... arguments)
    -> std::invoke_result_t<Function, Arguments...> {
  return std::visit(
      [&](const auto& mode) -> std::invoke_result_t<Function, Arguments...> {
        return replay::checkpoint_in(mode, std::forward<Function>(function), std::forward<Arguments>(arguments)...);
      },
      options.mode);
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
/// or a torch::nn::Sequential (pass *sequential). With Rerun they must live until backward. Semantics of
/// torch.utils.checkpoint.checkpoint_sequential.
template <class Layers>
at::Tensor checkpoint_sequential(Layers& layers, std::int64_t segments, at::Tensor x,
                                 const CheckpointOptions& options = {}) {
  const auto first = std::begin(layers);
  const auto ranges =
      replay::sequential_segments(static_cast<std::size_t>(std::distance(first, std::end(layers))), segments);
  // By value what a later call needs: iterators stay good as long as the layers live, as they must until backward.
  const auto run = [first](std::pair<std::size_t, std::size_t> range, at::Tensor y) {
    for (std::size_t i = range.first; i < range.second; ++i) {
      y = replay::call_layer(*std::next(first, static_cast<std::ptrdiff_t>(i)), std::move(y));
    }
    return y;
  };
  for (std::size_t i = 0; i + 1 < ranges.size(); ++i) x = checkpoint(options, run, ranges[i], std::move(x));
  return run(ranges.back(), std::move(x));
}

}  // namespace snug
