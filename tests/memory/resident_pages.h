#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/memory/address_range.h"

namespace snug::memory::testing_support {

inline constexpr Bytes kPage = AddressRange::kPage;

/// The bytes of [address, address + length) that the system holds physical memory for.
inline Bytes resident_bytes(const void* address, Bytes length) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(address) / page * page;
  const auto end =
      (reinterpret_cast<std::uintptr_t>(address) + static_cast<std::uintptr_t>(length) + page - 1) / page * page;
  std::vector<unsigned char> flags((end - begin) / page);
  if (::mincore(reinterpret_cast<void*>(begin), end - begin, flags.data()) != 0) return -1;
  Bytes count = 0;
  for (unsigned char flag : flags) count += flag & 1;
  return count * static_cast<Bytes>(page);
}

/// Writes to every byte, so that every page has memory behind it.
inline void touch(std::byte* address, Bytes length) { std::memset(address, 0x5a, static_cast<std::size_t>(length)); }

}  // namespace snug::memory::testing_support
