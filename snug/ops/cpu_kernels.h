#pragma once

#include "snug/ops/kernels/table.h"

namespace snug::ops {

/// The kernels for this processor: those of the instruction set that LibTorch's own run with (ATEN_CPU_CAPABILITY sets
/// a lesser one), and where there are none for it, those that need nothing.
const kernels::Table& cpu_kernels();

/// Whether kernels are for numbers of that type.
bool kernels_take(c10::ScalarType type);

}  // namespace snug::ops
