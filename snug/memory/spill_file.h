#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "snug/base/bytes.h"

namespace snug::memory {

/// A file without a name, for contents that have left memory: gone with its owner, however that ends. In the folder
/// that TMPDIR names, or /tmp. Not synchronized.
class SpillFile {
 public:
  /// Throws Error naming the folder when it cannot be made.
  SpillFile();
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  /// Writes behind what is there and returns where that is. Throws Error, and is as before, when the disk is full.
  Bytes append(std::span<const std::byte> contents);
  /// Fills `contents` from `offset`. Throws Error.
  void read(Bytes offset, std::span<std::byte> contents) const;

  [[nodiscard]] Bytes size() const noexcept { return size_; }

 private:
  std::string folder_;
  int file_ = -1;
  Bytes size_ = 0;
};

}  // namespace snug::memory
