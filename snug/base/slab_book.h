#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/range_heap.h"

namespace snug {

/// Where blocks lie in memory that is dear to get, and comes in large pieces of a power of two, within a budget: the
/// books alone, by which one that has the memory and one that plans for it decide the same. Not synchronized.
class SlabBook {
 public:
  using Id = std::int64_t;
  /// None: as much as there is.
  explicit SlabBook(std::optional<Bytes> budget = std::nullopt) : budget_(budget) {}
  /// Applies to new slabs; existing slabs are kept.
  void set_budget(std::optional<Bytes> budget) noexcept { budget_ = budget; }

  struct Block {
    Id slab = 0;
    Bytes offset = 0;
  };
  struct Taken {
    Block block;
    std::vector<Id> gone{};  ///< unused slabs that have made room for the block's,
    bool is_new = false;     ///< which is a new one
  };
  /// Room for `length` bytes, above 0, in the oldest slab that has some, or in a new one. nullopt, and nothing has
  /// changed, where that passes the budget.
  std::optional<Taken> take(Bytes length);
  void give(const Block& block, Bytes length);
  /// The size of the smallest slab that a block of `length` bytes fits into.
  [[nodiscard]] static Bytes least_slab(Bytes length);
  /// A slab that is unused, or whose memory was not to be had.
  void drop(Id slab);

  [[nodiscard]] std::vector<Id> unused() const;
  [[nodiscard]] Bytes size(Id slab) const { return slabs_.at(slab).size; }
  /// Of all slabs.
  [[nodiscard]] Bytes held() const noexcept { return held_; }

 private:
  struct Slab {
    Bytes size = 0;
    RangeHeap free{};
  };
  std::optional<Block> in_a_slab(Bytes length);
  [[nodiscard]] Bytes room() const;

  std::optional<Bytes> budget_;
  std::map<Id, Slab> slabs_;
  Id next_ = 0;
  Bytes held_ = 0;
};

}  // namespace snug
