#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "snug/base/gguf_metadata.h"
#include "snug/ops/block_format.h"

namespace snug::state {

struct GgufEntry {
  std::string name;
  ops::BlockFormat format;
  std::vector<std::int64_t> shape;  ///< as LibTorch has it, the last dimension contiguous: the file's in reverse
  std::size_t begin, end;           ///< in bytes from the start of the file
};

/// What stands in front of the data of a GGUF file.
struct GgufHeader {
  std::uint32_t version = 0;
  GgufMetadata metadata;
  std::vector<GgufEntry> tensors;  ///< in the order of their bytes

  /// The value under a key; null when there is none, or one of another type.
  template <class T>
  [[nodiscard]] const T* find(std::string_view key) const {
    const auto found = metadata.find(key);
    return found == metadata.end() ? nullptr : std::get_if<T>(&found->second);
  }
};

/// Reads the header of a GGUF file of version 2 or 3, little-endian, and checks all lengths and offsets against the
/// file. `name` is the file's name for errors. Memory: a small multiple of the header's own bytes, whatever it claims.
/// Throws DamagedFile, also for element formats that are not in ops::BlockFormat.
GgufHeader parse_gguf_header(std::span<const std::uint8_t> file, std::string_view name);

}  // namespace snug::state
