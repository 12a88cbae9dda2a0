#pragma once

#include <c10/core/Device.h>

#include <string>

namespace snug::train {
struct Config;

/// The device that a text such as "cpu", "cuda" or "cuda:1" names, whether it is there or not; without an index it has
/// none. Throws UsageError for a text that names none.
c10::Device device_named(const std::string& name);

/// Where the model of a configuration is, and its steps run (train.device), with its index. Throws UsageError when this
/// machine or this build has no such device, or packed weights are to be elsewhere than on the CPU.
c10::Device device_of(const Config& config);

}  // namespace snug::train
