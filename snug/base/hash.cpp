#include "snug/base/hash.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL  // no library to link
#include <xxhash.h>

namespace snug {

std::uint64_t hash_64(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

struct Hash128::State {
  XXH3_state_t xxh;
};

void Hash128::Free::operator()(State* state) const noexcept { delete state; }

Hash128::Hash128() : state_(new State) { XXH3_128bits_reset(&state_->xxh); }

void Hash128::add(std::span<const std::byte> bytes) { XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size()); }

std::string Hash128::digits() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string hash_128(std::span<const std::byte> bytes) {
  Hash128 hash;
  hash.add(bytes);
  return hash.digits();
}

}  // namespace snug
