#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

namespace snug::testing {

/// Seconds that a kernel takes on the simulated clock (see SimulatedSpeed): as long as its arithmetic or its operands
/// and results, each of which is read or written once (Williams et al. 2009, "Roofline"), but for those that operators
/// take a few places of, as an embedding does. Products, convolutions and attention have arithmetic.
double kernel_seconds(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments,
                      c10::ArrayRef<c10::IValue> results);

}  // namespace snug::testing
