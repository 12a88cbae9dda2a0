#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "snug/base/bytes.h"

namespace snug::memory {

enum class Way : std::uint8_t { ToFile, FromFile };

/// A range of a file, and the memory that it is written from or read into, in parts: whole pages at page boundaries of
/// both, as direct I/O wants them (open(2), O_DIRECT).
struct Piece {
  Bytes offset = 0;
  std::vector<iovec> memory;

  [[nodiscard]] Bytes length() const noexcept;
  /// The first so many bytes are done with. Allocates nothing.
  void skip(Bytes bytes) noexcept;
};

/// Moves pieces of files, several at once. One thread at a time.
class PieceIo {
 public:
  virtual ~PieceIo() = default;
  /// All of them; none is under way any more when it returns, or throws std::system_error, the first one's that failed:
  /// then it is not used again.
  virtual void transfer(int file, Way way, std::span<const Piece> pieces) = 0;
};

/// Through an io_uring of its own. Null where the kernel refuses that, or snug is built without liburing.
std::unique_ptr<PieceIo> uring_io();
/// By a few threads that wait for the disk.
std::unique_ptr<PieceIo> threaded_io();
/// The first of those that there is.
std::unique_ptr<PieceIo> piece_io();

}  // namespace snug::memory
