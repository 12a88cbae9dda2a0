#include "snug/memory/piece_io.h"

#include <utility>

namespace snug::memory {

Bytes Piece::length() const noexcept {
  Bytes length = 0;
  for (const iovec& part : memory) length += static_cast<Bytes>(part.iov_len);
  return length;
}

void Piece::skip(Bytes bytes) noexcept {
  offset += bytes;
  auto first = memory.begin();
  for (; first != memory.end() && bytes >= static_cast<Bytes>(first->iov_len); ++first)
    bytes -= static_cast<Bytes>(first->iov_len);
  memory.erase(memory.begin(), first);
  if (memory.empty()) return;
  memory.front().iov_base = static_cast<std::byte*>(memory.front().iov_base) + bytes;
  memory.front().iov_len -= static_cast<std::size_t>(bytes);
}

std::unique_ptr<PieceIo> piece_io() {
  auto ring = uring_io();
  return ring ? std::move(ring) : threaded_io();
}

}  // namespace snug::memory
