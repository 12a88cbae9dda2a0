#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

namespace snug::described {

/// What kernels reach on a device.
struct KernelSpeed {
  double least_seconds = 0;     ///< that any of them takes
  double flops = 0;             ///< a second, products of 16-bit numbers
  double flops_of_fp32 = 0;     ///< the same of others
  double bytes_per_second = 0;  ///< of the device's memory
};

/// Seconds that a kernel takes: as long as its arithmetic or its operands and results, each of which is read or written
/// once (Williams et al. 2009, "Roofline"), but for those that operators take a few places of, as an embedding does.
/// Products, convolutions and attention have arithmetic.
double kernel_seconds(const KernelSpeed& speed, const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments,
                      c10::ArrayRef<c10::IValue> results);

}  // namespace snug::described
