#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/slab_book.h"
#include "snug/memory/page_heap.h"
#include "snug/memory/tier_stats.h"

namespace snug::memory {

/// Memory of the host for contents that have left a device's, in blocks that are used again: outside of LibTorch's
/// allocators and of every limit of theirs, under a budget of its own. Any thread.
class HostPool {
 public:
  /// Page-locked memory, for copies to and from devices of that type that do not wait; for the CPU common memory.
  /// `budget`: the most that is held; none: as much as there is.
  explicit HostPool(c10::DeviceType copies_with = c10::kCPU, std::optional<Bytes> budget = std::nullopt);
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  /// Memory of the pool, given back with it. The pool must outlive it.
  class Block {
   public:
    Block(Block&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), bytes_(other.bytes_) {}
    Block& operator=(Block&& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Block() {
      if (pool_ != nullptr) pool_->give(bytes_);
    }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

   private:
    friend class HostPool;
    Block(HostPool& pool, std::span<std::byte> bytes) : pool_(&pool), bytes_(bytes) {}
    HostPool* pool_;
    std::span<std::byte> bytes_;
  };

  /// At least one byte. Throws Error, and nothing has changed, when that passes the budget, or there is no more.
  Block take(Bytes bytes);

  [[nodiscard]] TierStats stats() const;

 private:
  /// Of memory that is dear to get, in large pieces, where a SlabBook says.
  class Slabs {
   public:
    Slabs(c10::DeviceType copies_with, std::optional<Bytes> budget);
    std::byte* take(Bytes length);
    void give(std::byte* address, Bytes length);
    [[nodiscard]] Bytes held() const noexcept { return book_.held(); }

   private:
    void free(const std::vector<SlabBook::Id>& slabs);

    c10::DeviceType copies_with_;
    c10::Allocator& allocator_;
    SlabBook book_;
    std::map<SlabBook::Id, c10::DataPtr> memory_;
  };
  static std::variant<PageHeap, Slabs> source_for(c10::DeviceType type, std::optional<Bytes> budget);
  [[nodiscard]] Bytes held() const;
  void give(std::span<std::byte> block);

  mutable std::mutex mutex_;
  const std::optional<Bytes> budget_;
  std::variant<PageHeap, Slabs> source_;
  Bytes taken_ = 0, taken_peak_ = 0;
};

}  // namespace snug::memory
