#include "snug/train/scale_watch.h"

#include <fmt/format.h>

#include <utility>

#include "snug/base/errors.h"

namespace snug::train {
namespace {

// From 65,536, fifteen halvings lead to two, and forty below what fp16 tells from zero.
constexpr std::int64_t kMany = 15, kTooMany = 40;

}  // namespace

void ScaleWatch::updated() noexcept {
  in_a_row_ = 0;
  told_ = false;
}

std::optional<std::string> ScaleWatch::overflowed(std::int64_t step, double scale) {
  ++in_a_row_;
  const std::string cause =
      "the loss itself, or an operator on the way back, exceeds what fp16 holds (65504) whatever the scale is; "
      "precision.compute = \"bf16\" has the range of fp32, and a lower optimizer.learning_rate often helps";
  if (in_a_row_ >= kTooMany) {
    throw Error(
        fmt::format("train: the gradients of {} steps in a row, up to step {}, were not finite, and the loss "
                    "scale has fallen to {:g}: {}",
                    in_a_row_, step, scale, cause));
  }
  if ((in_a_row_ < kMany && scale >= 1) || std::exchange(told_, true)) return std::nullopt;
  return fmt::format("step {}: the loss scale keeps falling, to {:g} after {} overflows in a row: {}", step, scale,
                     in_a_row_, cause);
}

}  // namespace snug::train
