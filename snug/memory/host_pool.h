#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/slab_book.h"
#include "snug/memory/page_heap.h"
#include "snug/memory/tier_stats.h"

namespace snug::memory {

class HostPool;

/// The most that several pools hold together. Any thread.
class HostBudget {
 public:
  /// None: as much as there is.
  explicit HostBudget(std::optional<Bytes> most = std::nullopt) : most_(most) {}

  /// Of all pools together.
  [[nodiscard]] TierStats stats() const;

 private:
  friend class HostPool;
  [[nodiscard]] Bytes held() const;

  mutable std::mutex mutex_;  // of the pools as well
  const std::optional<Bytes> most_;
  std::vector<HostPool*> pools_;
  Bytes taken_ = 0, taken_peak_ = 0;
};

/// Host memory for tensor contents that were moved off a device, in blocks that are reused. It is outside of LibTorch's
/// allocators and their limits, and has a budget of its own. Any thread.
class HostPool {
 public:
  /// Page-locked memory, for asynchronous copies to and from devices of that type; ordinary memory for the CPU.
  HostPool(c10::DeviceType copies_with, std::shared_ptr<HostBudget> budget);
  /// With a budget of its own: the most that it holds; none: as much as there is.
  explicit HostPool(c10::DeviceType copies_with = c10::kCPU, std::optional<Bytes> budget = std::nullopt);
  ~HostPool();
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

  /// At least one byte. Throws TierFull, and nothing has changed, when that passes the budget, or there is no more.
  Block take(Bytes bytes);

  /// Of its budget, and so of all pools that share it.
  [[nodiscard]] TierStats stats() const { return budget_->stats(); }

 private:
  friend class HostBudget;
  /// Of memory that is dear to get, in large pieces, where a SlabBook says.
  class Slabs {
   public:
    explicit Slabs(c10::DeviceType copies_with);
    void set_limit(std::optional<Bytes> limit) noexcept { book_.set_budget(limit); }
    std::byte* take(Bytes length);
    void give(std::byte* address, Bytes length);
    void release_cached();
    [[nodiscard]] Bytes mapped() const noexcept { return book_.held(); }

   private:
    void free(const std::vector<SlabBook::Id>& slabs);

    c10::DeviceType copies_with_;
    c10::Allocator& allocator_;
    SlabBook book_;
    std::map<SlabBook::Id, c10::DataPtr> memory_;
  };
  static std::variant<PageHeap, Slabs> source_for(c10::DeviceType type);
  [[nodiscard]] Bytes held() const;
  /// nullptr where the budget, with what other pools hold of it, or the system has no more.
  std::byte* try_take(Bytes length);
  void give(std::span<std::byte> block);
  [[nodiscard]] std::string why_full(Bytes length) const;

  const std::shared_ptr<HostBudget> budget_;  // whose mutex protects the rest
  std::variant<PageHeap, Slabs> source_;
};

}  // namespace snug::memory
