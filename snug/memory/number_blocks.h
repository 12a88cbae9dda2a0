#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "snug/memory/parallel_for.h"

// How codecs share numbers among LibTorch's threads.
namespace snug::memory {

inline constexpr std::int64_t kBlock = 64 * 512;  ///< numbers that one thread does at a time: whole words of bits

inline std::int64_t blocks_of(std::int64_t numbers) { return (numbers + kBlock - 1) / kBlock; }

/// work(block, first, last) for each block of so many numbers.
template <class Work>
void for_blocks(std::int64_t numbers, const Work& work) {
  parallel_for(0, blocks_of(numbers), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) work(b, b * kBlock, std::min((b + 1) * kBlock, numbers));
  });
}

/// Room of a common length that threads take pieces of.
class SharedRoom {
 public:
  explicit SharedRoom(std::int64_t length) : length_(length) {}
  /// Where the piece begins; nullopt where there is no more.
  std::optional<std::int64_t> take(std::int64_t length) {
    const std::int64_t begin = taken_.fetch_add(length, std::memory_order_relaxed);
    if (begin + length <= length_) return begin;
    full_.store(true, std::memory_order_relaxed);
    return std::nullopt;
  }
  [[nodiscard]] bool was_enough() const { return !full_.load(std::memory_order_relaxed); }

 private:
  const std::int64_t length_;
  std::atomic<std::int64_t> taken_{0};
  std::atomic<bool> full_{false};
};

}  // namespace snug::memory
