#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/high_water.h"
#include "snug/memory/stats.h"
#include "snug/memory/tag.h"

namespace snug::memory {

/// No request is larger, so that rounding and sums stay within 63 bits.
inline constexpr std::size_t kLargestRequest = std::size_t{1} << 62;

/// The figures of one allocator: what it has handed out, by tag, with peaks and meters. But for meter(), whose meters
/// lock by themselves, the caller holds the mutex.
class Accounts {
 public:
  /// The mutex must outlive this.
  explicit Accounts(std::mutex& mutex) : mutex_(mutex) {}

  /// A block of `size` bytes was handed out; `mapped`: see Stats.
  void take(Bytes size, Tag tag, Bytes mapped) {
    ++stats_.allocations;
    stats_.allocated += size;
    const auto i = static_cast<std::size_t>(tag);
    stats_.by_tag[i] += size;
    stats_.peak_by_tag[i] = std::max(stats_.peak_by_tag[i], stats_.by_tag[i]);
    for (HighWater* meter : meters_) meter->change(size);
    if (stats_.allocated > stats_.allocated_peak) {
      stats_.allocated_peak = stats_.allocated;
      stats_.at_peak_by_tag = stats_.by_tag;
    }
    stats_.mapped_peak = std::max(stats_.mapped_peak, mapped);
  }
  void give(Bytes size, Tag tag) {
    stats_.allocated -= size;
    for (HighWater* meter : meters_) meter->change(-size);
    stats_.by_tag[static_cast<std::size_t>(tag)] -= size;
  }
  void retag(Bytes size, Tag from, Tag to);
  void reset_peak(Bytes mapped);

  /// What it knows: all but `mapped`, `limit` and `pressure_calls`.
  [[nodiscard]] const Stats& stats() const noexcept { return stats_; }
  [[nodiscard]] std::unique_ptr<Meter> meter();

 private:
  class HighWaterMeter;

  std::mutex& mutex_;
  Stats stats_;
  std::vector<HighWater*> meters_;
};

}  // namespace snug::memory
