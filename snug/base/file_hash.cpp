#include "snug/base/file_hash.h"

#include <algorithm>
#include <span>

#include "snug/base/hash.h"
#include "snug/base/mapped_file.h"

namespace snug {

FileHash file_hash(const std::filesystem::path& path) {
  constexpr std::size_t kPiece = std::size_t{4} << 20;
  const MappedFile file(path);
  Hash128 hash;
  for (auto left = file.bytes(); !left.empty(); left = left.subspan(std::min(kPiece, left.size()))) {
    hash.add(std::as_bytes(left.first(std::min(kPiece, left.size()))));
    file.let_go();
  }
  return {file.bytes().size(), hash.digits()};
}

}  // namespace snug
