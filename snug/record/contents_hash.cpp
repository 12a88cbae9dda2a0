#include "snug/record/contents_hash.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "snug/base/hash.h"
#include "snug/memory/owned_contents.h"
#include "snug/memory/parallel_for.h"
#include "snug/record/recording.h"
#include "snug/record/unseen.h"

namespace snug::record {

std::uint64_t contents_hash(const at::Tensor& tensor) {
  const Unseen unseen;
  const memory::ContentsThere there(tensor);
  at::Tensor plain = tensor.detach();
  if (plain.layout() != c10::kStrided) plain = plain.to_dense();
  plain = plain.resolve_conj().resolve_neg().to(at::kCPU).contiguous();
  return hash_64({static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()});
}

std::optional<std::uint64_t> contents_sample(const c10::Storage& storage) {
  if (!storage || !storage.device().is_cpu() || storage.data() == nullptr) return std::nullopt;
  if (memory::ownership_of(*storage.unsafeGetStorageImpl()) != nullptr) return std::nullopt;  // it comes and goes
  constexpr std::size_t kPlaces = 64, kPlace = 64;                                            // a cache line each
  const auto* data = static_cast<const std::byte*>(storage.data());
  const std::size_t bytes = storage.nbytes();
  if (bytes <= kPlaces * kPlace) return hash_64({data, bytes});
  std::array<std::byte, kPlaces * kPlace> places;
  const std::size_t apart = (bytes - kPlace) / (kPlaces - 1);
  for (std::size_t i = 0; i < kPlaces; ++i) std::memcpy(&places[i * kPlace], data + i * apart, kPlace);
  return hash_64(places);
}

BlockHashes BlockHashes::of(const ElementsOnHost& elements) {
  BlockHashes result;
  result.item_size = elements.item_size();
  const Bytes bytes = elements.bytes();
  result.blocks.resize(static_cast<std::size_t>((bytes + kBlock - 1) / kBlock));
  // A grain is worth a thread's while.
  constexpr std::int64_t kGrain = 64;
  memory::parallel_for(
      0, static_cast<std::int64_t>(result.blocks.size()), kGrain, [&](std::int64_t from, std::int64_t to) {
        std::array<std::byte, kBlock> buffer;
        for (std::int64_t i = from; i < to; ++i) {
          const Bytes length = std::min(kBlock, bytes - i * kBlock);
          result.blocks[static_cast<std::size_t>(i)] = hash_64(elements.read(i * kBlock, length, buffer.data()));
        }
      });
  return result;
}

std::optional<std::size_t> BlockHashes::first_difference(const BlockHashes& other) const {
  const auto [mine, theirs] = std::ranges::mismatch(blocks, other.blocks);
  if (mine == blocks.end() && theirs == other.blocks.end()) return std::nullopt;
  return static_cast<std::size_t>(mine - blocks.begin());
}

}  // namespace snug::record
