#pragma once

#include <optional>

#include "snug/memory/device_memory.h"

namespace snug::memory {

/// A limit, or none, for as long as this lives. With several on one device the newest counts; when it goes, the newest
/// of those that are left, in whatever order they go; when all are gone, the limit from before the first. A forked
/// child has none. The destructor does not throw: a device that refuses another limit keeps the one it has. Any thread.
class HeldLimit {
 public:
  HeldLimit(DeviceMemory& memory, std::optional<Bytes> limit);
  ~HeldLimit();
  HeldLimit(const HeldLimit&) = delete;
  HeldLimit& operator=(const HeldLimit&) = delete;

  /// Whether it is the one that counts.
  [[nodiscard]] bool newest() const;

 private:
  DeviceMemory& memory_;
  std::optional<Bytes> limit_;
};

}  // namespace snug::memory
