#include "snug/base/file_hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#define XXH_INLINE_ALL  // no library to link
#include <xxhash.h>

#include "snug/base/mapped_file.h"

namespace snug {

FileHash file_hash(const std::filesystem::path& path) {
  constexpr std::size_t kPiece = std::size_t{4} << 20;
  const MappedFile file(path);
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  for (auto left = file.bytes(); !left.empty(); left = left.subspan(std::min(kPiece, left.size()))) {
    XXH3_128bits_update(state.get(), left.data(), std::min(kPiece, left.size()));
    file.let_go();
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return {file.bytes().size(), fmt::format("{:016x}{:016x}", hash.high64, hash.low64)};
}

}  // namespace snug
