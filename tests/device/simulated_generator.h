#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

namespace snug::testing {

/// One of a simulated device: the CPU's numbers.
at::Generator new_simulated_generator(c10::DeviceIndex index);
/// The CPU's generator that such a one is.
at::Generator cpu_generator_of(const at::Generator& simulated);

}  // namespace snug::testing
