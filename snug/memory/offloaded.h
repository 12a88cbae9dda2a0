#pragma once

#include <c10/core/Storage.h>

#include <variant>

#include "snug/base/bytes.h"
#include "snug/memory/tiers.h"

namespace snug::memory {

/// The contents of a storage, outside of its device's memory, in a tier that must outlive them.
class Offloaded {
 public:
  /// Copies the first `bytes`. Throws Error when they do not fit there, or it cannot be written.
  Offloaded(const c10::Storage& storage, Bytes bytes, Tiers& tiers, Tier tier);
  /// Into the nearest tier.
  Offloaded(const c10::Storage& storage, Bytes bytes, Tiers& tiers)
      : Offloaded(storage, bytes, tiers, tiers.nearest(storage.device())) {}

  /// A new storage on the device, with the contents as they were. Throws Error when they cannot be read.
  [[nodiscard]] c10::Storage load() const;
  /// Writes the contents over those of `storage`, which is of the same device and at least as large. On the CPU this
  /// takes no memory.
  void write_to(const c10::Storage& storage) const;
  [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }

 private:
  struct OnDisk {
    SpillFile* file;
    SpillFile::Block block;
  };
  using Place = std::variant<HostPool::Block, OnDisk>;
  static Place placed(const c10::Storage& storage, Bytes bytes, Tiers& tiers, Tier tier);

  c10::Device device_;
  Bytes bytes_;
  Place place_;
};

}  // namespace snug::memory
