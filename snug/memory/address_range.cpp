#include "snug/memory/address_range.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "snug/base/errors.h"

// In Linux since 5.7; older headers lack it, and older kernels answer EINVAL.
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

namespace snug::memory {
namespace {

constexpr Bytes kReserve = Bytes{1} << 42;  // addresses cost nothing
constexpr Bytes kLeastReserve = Bytes{1} << 33;
// One call costs about as much as this many page faults.
constexpr Bytes kLeastMove = 4 * AddressRange::kPage;
// Each seam may be one more area, of which the system allows 65,530 to a process.
constexpr std::size_t kMostSeams = 16'000;

void* mapped_anew(void* address, Bytes length, int flags) {
  void* mapped = ::mmap(address, static_cast<std::size_t>(length), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
  // A huge page would make more resident than what is mapped here.
  if (mapped != MAP_FAILED) ::madvise(mapped, static_cast<std::size_t>(length), MADV_NOHUGEPAGE);
  return mapped;
}

}  // namespace

AddressRange::AddressRange() {
  for (size_ = kReserve; size_ >= kLeastReserve; size_ /= 2) {
    if (void* address = mapped_anew(nullptr, size_, 0); address != MAP_FAILED) {
      base_ = static_cast<std::byte*>(address);
      return;
    }
  }
  throw Error("memory: the system refuses to reserve 8 GiB of addresses; raise ulimit -v");
}

AddressRange::~AddressRange() { ::munmap(base_, static_cast<std::size_t>(size_)); }

void AddressRange::join(Bytes offset, Bytes length) {
  seams_.erase(seams_.upper_bound(offset), seams_.lower_bound(offset + length));
  seams_.insert({offset, offset + length});
}

void AddressRange::release(Bytes offset, Bytes length) {
  const auto inside = seams_.upper_bound(offset);
  const auto end = seams_.lower_bound(offset + length);
  // A range of several areas becomes one again, so that seams do not grow from step to step.
  if (inside != end && mapped_anew(base_ + offset, length, MAP_FIXED) != MAP_FAILED) return join(offset, length);
  ::madvise(base_ + offset, static_cast<std::size_t>(length), MADV_DONTNEED);
}

Bytes AddressRange::move(Bytes from, Bytes length, Bytes to) {
  Bytes moved = 0;
  for (Bytes done = 0; done < length;) {
    const auto seam = seams_.upper_bound(from + done);
    const Bytes end = seam == seams_.end() ? from + length : std::min(*seam, from + length);
    const Bytes piece = end - from - done;
    const Bytes target = to + done;
    const auto size = static_cast<std::size_t>(piece);
    if (!can_move_ || piece < kLeastMove || seams_.size() >= kMostSeams) {
      release(from + done, piece);
    } else if (::mremap(base_ + from + done, size, size, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP,
                        base_ + target) != MAP_FAILED) {
      join(target, piece);
      moved += piece;
    } else {
      can_move_ = errno == ENOMEM;
      release(from + done, piece);
      // A refused move may have unmapped its target already.
      if (mapped_anew(base_ + target, piece, MAP_FIXED) == MAP_FAILED) {
        if (done > 0) release(to, done);
        if (from + length > end) release(end, from + length - end);
        throw Error("memory: the system refuses to map pages again (vm.max_map_count?)");
      }
      join(target, piece);
    }
    done += piece;
  }
  return moved;
}

}  // namespace snug::memory
