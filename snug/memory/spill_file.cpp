#include "snug/memory/spill_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "snug/base/errors.h"
#include "snug/base/hash.h"

namespace snug::memory {
namespace {

constexpr Bytes kAlignment = 4096;  // of blocks: whole pages of the file
constexpr int kTries = 3;

Bytes rounded(Bytes bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

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
    }
  }
}

Bytes SpillFile::take(Bytes length) {
  const std::lock_guard lock(mutex_);
  if (budget_ && taken_ + length > *budget_) {
    throw Error(
        fmt::format("offload: {} do not fit on the disk, of whose budget of {} {} are taken; raise the disk budget",
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

void SpillFile::give(Bytes offset, Bytes bytes) noexcept {
  const Bytes length = rounded(bytes);
  if (length == 0) return;
  const std::lock_guard lock(mutex_);
  free_.give(offset, length);
  taken_ -= length;
}

SpillFile::Block SpillFile::write(std::span<const std::byte> contents) {
  const Bytes bytes = std::ssize(contents);
  if (bytes == 0) return {*this, 0, 0, hash_64(contents)};
  Block block(*this, take(rounded(bytes)), bytes, hash_64(contents));
  try {
    insist("writing", bytes, [&] { file_->write(block.offset_, contents); });
  } catch (const Error&) {
    const std::lock_guard lock(mutex_);
    // A part of it may be behind all others, on a disk that is full.
    if (block.offset_ + rounded(bytes) == end_) {
      file_->cut_off(block.offset_);
      length_ = std::min(length_, block.offset_);
    }
    throw;
  }
  return block;
}

void SpillFile::read(const Block& block, std::span<std::byte> contents) const {
  if (block.bytes_ == 0) return;
  // A flipped bit may be the cable's.
  for (int tries = 1;; ++tries) {
    insist("reading", block.bytes_, [&] { file_->read(block.offset_, contents); });
    if (hash_64(contents) == block.hash_) return;
    if (tries == kTries) fail("reading", block.bytes_, "it is not what was written (another checksum)");
  }
}

TierStats SpillFile::stats() const {
  const std::lock_guard lock(mutex_);
  return {.taken = taken_, .taken_peak = taken_peak_, .held = length_, .budget = budget_};
}

}  // namespace snug::memory
