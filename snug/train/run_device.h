#pragma once

#include <c10/core/Device.h>

namespace snug::train {
struct Config;

/// Where the model of a configuration is, and its steps run (train.device), with its index: where that has none, each
/// process that a launcher has started on a machine has one of its own, or, where there are fewer, shares it with as
/// few others as possible. Throws UsageError when this machine or this build has no such device, when several processes
/// would be on one of several, or packed weights are to be elsewhere than on the CPU.
c10::Device device_of(const Config& config);

}  // namespace snug::train
