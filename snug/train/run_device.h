#pragma once

#include <c10/core/Device.h>

namespace snug::train {
struct Config;

/// Where the model of a configuration is, and its steps run (train.device), with its index. Throws UsageError when this
/// machine or this build has no such device, or packed weights are to be elsewhere than on the CPU.
c10::Device device_of(const Config& config);

}  // namespace snug::train
