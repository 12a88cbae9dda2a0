#include "snug/train/overflows.h"

#include <fmt/format.h>

#include "snug/train/failed_in_all.h"

namespace snug::train {
namespace {

// From a loss scale of 65,536, forty halvings lead below what fp16 tells from zero.
constexpr std::int64_t kTooMany = 40;

}  // namespace

void Overflows::one_more(const optim::GradScaler& scaler, std::int64_t step) {
  ++in_a_row_;
  // Gradients that are not scaled up any more overflow by themselves.
  if (in_a_row_ < kTooMany || scaler.get_scale() >= 1) return;
  throw FailedInAll(fmt::format(
      "train: the gradients of {} steps in a row, up to step {}, were not finite, and the loss scale has fallen to "
      "{:g}: the loss itself, or an operator on the way back, exceeds what fp16 holds (65504) whatever the scale is; a "
      "lower optimizer.learning_rate often helps, and in a new run precision.compute = \"bf16\", which has the range "
      "of fp32",
      in_a_row_, step, scaler.get_scale()));
}

}  // namespace snug::train
