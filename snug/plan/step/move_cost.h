#pragma once

#include <optional>

#include "snug/base/bytes.h"
#include "snug/plan/step/action.h"

namespace snug::plan {

/// What moving values out of the device's memory takes, and how much may be there.
struct MoveCost {
  double out_seconds_per_byte = 0, in_seconds_per_byte = 0;
  double seconds_per_copy = 0;
  /// By which copies that go on beside the step make it longer: of the processor that computes it.
  double own_out_seconds_per_byte = 0, own_in_seconds_per_byte = 0;
  bool overlaps = false;        ///< copies go on while the device computes, one at a time each way; else the step does
                                ///< nothing else meanwhile
  std::optional<Bytes> budget;  ///< for all that is there at once; none: as much as there is
  bool in_slabs = false;        ///< its memory comes in large pieces, which count (see SlabBook); else in pages

  [[nodiscard]] double out(Bytes bytes) const {
    return seconds_per_copy + out_seconds_per_byte * static_cast<double>(bytes);
  }
  [[nodiscard]] double in(Bytes bytes) const {
    return seconds_per_copy + in_seconds_per_byte * static_cast<double>(bytes);
  }
  [[nodiscard]] double own_out(Bytes bytes) const { return own_out_seconds_per_byte * static_cast<double>(bytes); }
  [[nodiscard]] double own_in(Bytes bytes) const { return own_in_seconds_per_byte * static_cast<double>(bytes); }
  friend bool operator==(const MoveCost&, const MoveCost&) = default;
};

/// Where plans may move values, and what that takes; nothing where they may not.
struct Moves {
  std::optional<MoveCost> host, disk;

  [[nodiscard]] bool any() const noexcept { return host || disk; }
  /// Of a home outside of the device.
  [[nodiscard]] const std::optional<MoveCost>& to(Home home) const noexcept { return home == Home::Disk ? disk : host; }
  /// The nearest home whose copies go on while the device computes; Home::Device where there is none.
  [[nodiscard]] Home overlapping() const noexcept {
    return host && host->overlaps ? Home::Host : disk && disk->overlaps ? Home::Disk : Home::Device;
  }
  friend bool operator==(const Moves&, const Moves&) = default;
};

}  // namespace snug::plan
