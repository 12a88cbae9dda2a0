#include "snug/memory/spill_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <new>
#include <system_error>

#include "snug/base/errors.h"
#include "snug/base/hash.h"
#include "snug/memory/tier_full.h"

namespace snug::memory {
namespace {

constexpr int kTries = 3;

/// What lies before it in its first page: as much as in memory, so that whole pages lie alike (see BlockFile).
Bytes shift_of(std::span<const std::byte> contents) {
  return static_cast<Bytes>(reinterpret_cast<std::uintptr_t>(contents.data()) %
                            static_cast<std::uintptr_t>(BlockFile::kPage));
}
Bytes first_page(Bytes offset) { return offset / BlockFile::kPage * BlockFile::kPage; }
/// Whole pages.
Bytes length_of(Bytes offset, Bytes bytes) {
  return (offset + bytes + BlockFile::kPage - 1) / BlockFile::kPage * BlockFile::kPage - first_page(offset);
}

std::vector<std::uint64_t> hashes_of_parts(std::span<const std::byte> contents) {
  std::vector<std::uint64_t> hashes;
  for (; !contents.empty(); contents = contents.subspan(std::min<std::size_t>(SpillFile::kPart, contents.size())))
    hashes.push_back(hash_64(contents.first(std::min<std::size_t>(SpillFile::kPart, contents.size()))));
  return hashes;
}

}  // namespace

SpillFile::SpillFile(std::unique_ptr<BlockFile> file, std::optional<Bytes> budget)
    : file_(std::move(file)), budget_(budget) {}

void SpillFile::fail(const char* what, Bytes bytes, const char* why) const {
  throw Error(fmt::format("offload: {} {} of a temporary file in {}: {}; set TMPDIR to a folder on a disk with room",
                          what, format_bytes(bytes), file_->where(), why));
}

template <class Access>
void SpillFile::insist(const char* what, Bytes bytes, const Access& access) const {
  for (int tries = 1;; ++tries) {
    try {
      return access();
    } catch (const std::system_error& error) {
      const bool may_pass = error.code().value() == EIO || error.code().value() == EAGAIN;
      if (!may_pass || tries == kTries) fail(what, bytes, error.code().message().c_str());
    } catch (const std::bad_alloc&) {
      fail(what, bytes, "the system has no memory for it");
    }
  }
}

Bytes SpillFile::take(Bytes length) {
  const std::lock_guard lock(mutex_);
  if (budget_ && taken_ + length > *budget_) {
    throw TierFull(fmt::format("{} do not fit on the disk, of whose budget of {} {} are taken; raise the disk budget",
                               format_bytes(length), format_bytes(*budget_), format_bytes(taken_)));
  }
  taken_ += length;
  taken_peak_ = std::max(taken_peak_, taken_);
  if (const auto offset = free_.take(length)) return *offset;
  // The last free range, made longer, where it ends the file.
  Bytes offset = end_;
  if (const auto last = free_.ending_at(end_)) {
    free_.take_at(last->first, last->second);
    offset = last->first;
  }
  end_ = offset + length;
  length_ = std::max(length_, end_);
  return offset;
}

void SpillFile::give(const Block& block) noexcept {
  if (block.bytes_ == 0) return;
  const Bytes length = length_of(block.offset_, block.bytes_);
  const std::lock_guard lock(mutex_);
  free_.give(first_page(block.offset_), length);
  taken_ -= length;
}

SpillFile::Block SpillFile::reserve(std::span<const std::byte> contents) {
  const Bytes bytes = std::ssize(contents);
  if (bytes == 0) return {*this, 0, 0};
  const Bytes shift = shift_of(contents);
  return {*this, take(length_of(shift, bytes)) + shift, bytes};
}

SpillFile::Block SpillFile::write(std::span<const std::byte> contents) {
  Block block = reserve(contents);
  write(block, contents);
  return block;
}

void SpillFile::write(Block& block, std::span<const std::byte> contents) {
  block.hashes_ = hashes_of_parts(contents);
  if (block.bytes_ == 0) return;
  try {
    insist("writing", block.bytes_, [&] { file_->write(block.offset_, contents); });
  } catch (const Error&) {
    const std::lock_guard lock(mutex_);
    // A part of it may be behind all others, on a disk that is full.
    const Bytes first = first_page(block.offset_);
    if (first + length_of(block.offset_, block.bytes_) == end_) {
      file_->cut_off(first);
      length_ = std::min(length_, first);
    }
    throw;
  }
}

void SpillFile::read_part(const Block& block, Bytes from, std::span<std::byte> contents) const {
  if (contents.empty()) return;
  const auto first = static_cast<std::size_t>(from / kPart);
  const auto is_what_was_written = [&](const std::vector<std::uint64_t>& read) {
    return first + read.size() <= block.hashes_.size() &&
           std::ranges::equal(read, std::span(block.hashes_).subspan(first, read.size()));
  };
  // A flipped bit may be the cable's.
  for (int tries = 1;; ++tries) {
    insist("reading", std::ssize(contents), [&] { file_->read(block.offset_ + from, contents); });
    if (is_what_was_written(hashes_of_parts(contents))) return;
    if (tries == kTries) fail("reading", std::ssize(contents), "it is not what was written (another checksum)");
  }
}

TierStats SpillFile::stats() const {
  const std::lock_guard lock(mutex_);
  return {.taken = taken_, .taken_peak = taken_peak_, .held = length_, .budget = budget_};
}

}  // namespace snug::memory
