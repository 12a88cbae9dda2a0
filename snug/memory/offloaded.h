#pragma once

#include <c10/core/Storage.h>

#include <utility>

#include "snug/base/bytes.h"
#include "snug/memory/stream_mark.h"
#include "snug/memory/tier_room.h"
#include "snug/memory/tiers.h"

namespace snug::memory {

/// The contents of a storage, outside of its device's memory, in a tier that must outlive them.
class Offloaded {
 public:
  /// Copies the first `bytes`. Throws Error when they do not fit there, or it cannot be written.
  Offloaded(const c10::Storage& storage, Bytes bytes, Tiers& tiers, Tier tier)
      : Offloaded(sent(storage, bytes, tiers, tier)) {
    left().wait();
  }
  /// Into the nearest tier.
  Offloaded(const c10::Storage& storage, Bytes bytes, Tiers& tiers)
      : Offloaded(storage, bytes, tiers, tiers.nearest(storage.device())) {}
  /// The same, but the copy may still go on (see Links): until it has left(), the storage has to stay as it is. Of
  /// what cannot be written left() tells, and the contents are in the storage alone.
  [[nodiscard]] static Offloaded sent(const c10::Storage& storage, Bytes bytes, Tiers& tiers, Tier tier);
  [[nodiscard]] const StreamMark& left() const noexcept { return room_.written(); }

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
  [[nodiscard]] Bytes bytes() const noexcept { return room_.bytes(); }

 private:
  explicit Offloaded(TierRoom room) : room_(std::move(room)) {}

  TierRoom room_;
};

}  // namespace snug::memory
