#include "snug/base/hash.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL  // no library to link
#include <xxhash.h>

namespace snug {

std::uint64_t hash_64(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string hash_128(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace snug
