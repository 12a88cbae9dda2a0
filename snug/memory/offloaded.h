#pragma once

#include <c10/core/Storage.h>

#include <memory>
#include <utility>
#include <variant>

#include "snug/base/bytes.h"
#include "snug/memory/stream_mark.h"
#include "snug/memory/tiers.h"

namespace snug::memory {

/// The contents of a storage, outside of its device's memory, in a tier that must outlive them.
class Offloaded {
 public:
  /// Copies the first `bytes`. Throws Error when they do not fit there, or it cannot be written.
  Offloaded(const c10::Storage& storage, Bytes bytes, Tiers& tiers, Tier tier)
      : Offloaded(sent(storage, bytes, tiers, tier)) {
    left_.wait();
  }
  /// Into the nearest tier.
  Offloaded(const c10::Storage& storage, Bytes bytes, Tiers& tiers)
      : Offloaded(storage, bytes, tiers, tiers.nearest(storage.device())) {}
  /// The same, but the copy may still go on (see Links): until it has left(), the storage has to stay as it is. Of
  /// what cannot be written left() tells, and the contents are in the storage alone.
  [[nodiscard]] static Offloaded sent(const c10::Storage& storage, Bytes bytes, Tiers& tiers, Tier tier);
  [[nodiscard]] const StreamMark& left() const noexcept { return left_; }

  /// Contents on their way back.
  struct Arriving {
    c10::Storage storage;  ///< a new one, on the device
    StreamMark there;      ///< from then on it has the contents as they were; before, it has to stay. Waiting for it
                           ///< throws Error when they cannot be read
  };
  /// Throws Error when they cannot be read.
  [[nodiscard]] Arriving fetch() const;
  /// Writes the contents over those of `storage`, which is of the same device and at least as large. On the CPU this
  /// takes no memory.
  void write_to(const c10::Storage& storage) const;
  [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }

 private:
  struct OnDisk {
    SpillFile* file;
    std::shared_ptr<SpillFile::Block> block;  // also of the threads that write and read it
  };
  using Place = std::variant<HostPool::Block, OnDisk>;
  Offloaded(c10::Device device, Bytes bytes, Links& links, Place place, StreamMark left)
      : device_(device), bytes_(bytes), links_(&links), place_(std::move(place)), left_(std::move(left)) {}

  c10::Device device_;
  Bytes bytes_;
  Links* links_;
  Place place_;
  StreamMark left_;
};

}  // namespace snug::memory
