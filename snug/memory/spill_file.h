#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/range_heap.h"
#include "snug/memory/block_file.h"
#include "snug/memory/tier_stats.h"

namespace snug::memory {

/// Contents that have left memory for a disk, in blocks whose room is used again. What is read is compared with what
/// was written (XXH3), part by part. Any thread.
class SpillFile {
 public:
  static constexpr Bytes kPart = 2_MiB;

  /// `budget`: the most that blocks take; none: as much as the disk has.
  explicit SpillFile(std::optional<Bytes> budget = std::nullopt) : SpillFile(unnamed_file(), budget) {}
  explicit SpillFile(std::unique_ptr<BlockFile> file, std::optional<Bytes> budget = std::nullopt);
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  /// Contents in the file, gone with it. The file must outlive it.
  class Block {
   public:
    Block(Block&& other) noexcept
        : file_(std::exchange(other.file_, nullptr)),
          offset_(other.offset_),
          bytes_(other.bytes_),
          hashes_(std::move(other.hashes_)) {}
    Block& operator=(Block&& other) noexcept {
      std::swap(file_, other.file_);
      std::swap(offset_, other.offset_);
      std::swap(bytes_, other.bytes_);
      std::swap(hashes_, other.hashes_);
      return *this;
    }
    ~Block() {
      if (file_ != nullptr) file_->give(*this);
    }
    [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }

   private:
    friend class SpillFile;
    Block(SpillFile& file, Bytes offset, Bytes bytes) : file_(&file), offset_(offset), bytes_(bytes) {}
    SpillFile* file_;
    Bytes offset_, bytes_;
    std::vector<std::uint64_t> hashes_;  // of each part
  };

  /// Throws Error, and is as before, when that passes the budget, the disk is full, or it fails more than a few times.
  Block write(std::span<const std::byte> contents);
  /// The same in two steps, of which the second, that takes long, may be another thread's. The room that is taken suits
  /// these addresses.
  Block reserve(std::span<const std::byte> contents);
  void write(Block& block, std::span<const std::byte> contents);
  /// Fills `contents`, which is as long as the block. Throws Error when the disk fails more than a few times, or what
  /// it has is not what was written.
  void read(const Block& block, std::span<std::byte> contents) const { read_part(block, 0, contents); }
  /// The same of one or several parts in a row, the first of which begins at `from`: each is kPart long, but the
  /// block's last one.
  void read_part(const Block& block, Bytes from, std::span<std::byte> contents) const;

  [[nodiscard]] TierStats stats() const;

 private:
  Bytes take(Bytes length);
  void give(const Block& block) noexcept;
  [[noreturn]] void fail(const char* what, Bytes bytes, const char* why) const;
  /// Does it once more where the system reports an error of the medium.
  template <class Access>
  void insist(const char* what, Bytes bytes, const Access& access) const;

  const std::unique_ptr<BlockFile> file_;
  const std::optional<Bytes> budget_;
  mutable std::mutex mutex_;  // of what follows
  RangeHeap free_;
  Bytes end_ = 0;  // behind the last block
  Bytes taken_ = 0, taken_peak_ = 0, length_ = 0;
};

}  // namespace snug::memory
