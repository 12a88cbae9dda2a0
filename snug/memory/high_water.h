#pragma once

#include <cstddef>
#include <cstdint>

#include "snug/base/bytes.h"
#include "snug/memory/device_memory.h"

namespace snug::memory {

/// The highest level of memory in a window of time, as it would have been had all threads been at their own highest at
/// the same moment: kernels take scratch memory on each thread of a parallel loop, and whether those overlap differs
/// from run to run. With one thread it is the highest level there was, and what one allocates and another frees counts
/// as if it were there until the window ends. The highest level that there was is beside it. The caller locks.
class HighWater {
 public:
  /// At once, in one process: one for each micro-batch that is in flight while it is recorded.
  static constexpr std::size_t kMost = 1024;

  /// Begins at `level` bytes. Throws Error when there are kMost already.
  explicit HighWater(Bytes level);
  ~HighWater();
  HighWater(const HighWater&) = delete;
  HighWater& operator=(const HighWater&) = delete;

  /// The calling thread allocated, or freed (less than zero).
  void change(Bytes bytes);
  /// Ends the window and begins another, at `level` bytes. Returns the highest levels of the one that ended.
  Meter::Peak take(Bytes level);

 private:
  std::size_t slot_;
  std::uint64_t window_;
  Bytes start_;
  Bytes level_, highest_;
  Bytes peaks_ = 0;  // of each thread, of what it has allocated less what it has freed in this window
};

}  // namespace snug::memory
