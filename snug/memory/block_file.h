#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "snug/base/bytes.h"

namespace snug::memory {

/// Bytes on a disk, by offset. What a tier does with them is a matter of its own (see SpillFile); tests put one that
/// fails in its place. Reads and writes of pages apart may go on at once.
class BlockFile {
 public:
  static constexpr Bytes kPage = 4096;

  virtual ~BlockFile() = default;
  /// Writes all of it, making the file longer where that takes it. What else is in the pages that it touches may be
  /// anything then. Throws std::system_error.
  virtual void write(Bytes offset, std::span<const std::byte> contents) = 0;
  /// Fills all of it. Throws std::system_error.
  virtual void read(Bytes offset, std::span<std::byte> contents) = 0;
  /// What is behind goes, as far as the system lets it. Never throws.
  virtual void cut_off(Bytes size) noexcept = 0;
  /// For messages: the folder that it is in.
  [[nodiscard]] virtual std::string where() const = 0;
};

/// That TMPDIR names, or /tmp.
std::string folder_of_unnamed_files();
/// Whether the folder's file system keeps its files in memory (tmpfs, ramfs): they count towards the machine's memory,
/// and the control group's. False for a folder that is not there.
bool is_in_memory(const std::string& folder);

/// A file without a name in that folder: gone with its owner, however that ends. By direct I/O where the file system
/// has it, past its page cache: fastest where contents lie in their pages of memory as at that offset in those of the
/// file. Throws Error naming the folder when it cannot be made.
std::unique_ptr<BlockFile> unnamed_file();

}  // namespace snug::memory
