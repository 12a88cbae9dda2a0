#pragma once

#include "snug/memory/device_memory.h"

namespace snug::memory {

/// A limit for as long as this lives. With several on one device the newest counts; when it goes, the newest of those
/// that are left, in whatever order they go; when all are gone, the limit from before the first. Any thread.
class HeldLimit {
 public:
  HeldLimit(DeviceMemory& memory, Bytes limit);
  ~HeldLimit();
  HeldLimit(const HeldLimit&) = delete;
  HeldLimit& operator=(const HeldLimit&) = delete;

 private:
  DeviceMemory& memory_;
  Bytes limit_;
};

}  // namespace snug::memory
