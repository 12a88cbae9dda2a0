#pragma once

#include <c10/core/Device.h>

#include "snug/base/bytes.h"

namespace snug {

/// All of a device's memory that tensors may take.
struct DeviceBudget {
  c10::Device device;
  Bytes bytes = 0;
};

}  // namespace snug
