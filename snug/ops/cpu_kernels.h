#pragma once

#include "snug/ops/found_apart.h"
#include "snug/ops/kernels/table.h"

namespace snug::ops {

/// The kernels for this processor: those of the instruction set that LibTorch's own run with (ATEN_CPU_CAPABILITY sets
/// a lesser one), and where there are none for it, those that need nothing.
const kernels::Table& cpu_kernels();

/// Whether kernels are for numbers of that type.
bool kernels_take(c10::ScalarType type);

/// test(type), found apart once in the process for each type that kernels take; false for others.
template <bool (*test)(c10::ScalarType)>
bool once_for(c10::ScalarType type) {
  static const bool of_float = found_apart(test, c10::kFloat), of_double = found_apart(test, c10::kDouble);
  static const bool of_bfloat16 = found_apart(test, c10::kBFloat16), of_half = found_apart(test, c10::kHalf);
  switch (type) {
    case c10::kFloat:
      return of_float;
    case c10::kDouble:
      return of_double;
    case c10::kBFloat16:
      return of_bfloat16;
    case c10::kHalf:
      return of_half;
    default:
      return false;
  }
}

}  // namespace snug::ops
