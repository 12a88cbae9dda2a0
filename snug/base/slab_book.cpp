#include "snug/base/slab_book.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace snug {
namespace {

constexpr Bytes kSlab = 32_MiB, kPage = 4_KiB;

Bytes power_of_two_from(Bytes bytes) {
  return static_cast<Bytes>(std::bit_ceil(static_cast<std::uint64_t>(std::max(bytes, kPage))));
}

}  // namespace

Bytes SlabBook::room() const {
  return budget_ ? std::max<Bytes>(*budget_ - held_, 0) : std::numeric_limits<Bytes>::max();
}

Bytes SlabBook::least_slab(Bytes length) { return power_of_two_from(length); }

std::optional<SlabBook::Block> SlabBook::in_a_slab(Bytes length) {
  for (auto& [id, slab] : slabs_) {
    if (const auto offset = slab.free.take(length)) return Block{id, *offset};
  }
  return std::nullopt;
}

std::optional<SlabBook::Taken> SlabBook::take(Bytes length) {
  if (const auto block = in_a_slab(length)) return Taken{.block = *block};
  Taken taken;
  const Bytes least = least_slab(length);
  if (least > room()) {  // those were too small
    Bytes more = 0;
    for (const Id id : unused()) more += size(id);
    if (least > room() + more) return std::nullopt;
    taken.gone = unused();
    for (const Id id : taken.gone) drop(id);
  }
  Bytes bytes = std::max(least, kSlab);
  while (bytes > room()) bytes /= 2;
  const Id id = next_++;
  slabs_[id].size = bytes;
  slabs_[id].free.give(0, bytes);
  held_ += bytes;
  taken.is_new = true;
  taken.block = *in_a_slab(length);
  return taken;
}

void SlabBook::give(const Block& block, Bytes length) { slabs_.at(block.slab).free.give(block.offset, length); }

void SlabBook::drop(Id slab) {
  held_ -= slabs_.at(slab).size;
  slabs_.erase(slab);
}

std::vector<SlabBook::Id> SlabBook::unused() const {
  std::vector<Id> all;
  for (const auto& [id, slab] : slabs_) {
    if (slab.free.total() == slab.size) all.push_back(id);
  }
  return all;
}

}  // namespace snug
