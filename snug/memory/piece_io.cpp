#include "snug/memory/piece_io.h"

#include <utility>

namespace snug::memory {

Bytes Piece::length() const noexcept {
  Bytes length = 0;
  for (const iovec& part : memory) length += static_cast<Bytes>(part.iov_len);
  return length;
}

Piece Piece::behind(Bytes bytes) const {
  Piece rest{offset + bytes, {}};
  for (const iovec& part : memory) {
    const auto length = static_cast<Bytes>(part.iov_len);
    if (bytes < length) {
      rest.memory.push_back(
          {static_cast<std::byte*>(part.iov_base) + bytes, part.iov_len - static_cast<std::size_t>(bytes)});
      bytes = 0;
    } else {
      bytes -= length;
    }
  }
  return rest;
}

std::unique_ptr<PieceIo> piece_io() {
  auto ring = uring_io();
  return ring ? std::move(ring) : threaded_io();
}

}  // namespace snug::memory
