#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace snug {

/// XXH3 of 64 bits, the same on every machine of one byte order: for what files and other processes compare.
std::uint64_t hash_64(std::span<const std::byte> bytes);

/// XXH3 of 128 bits, as 32 hexadecimal digits: for contents of files.
std::string hash_128(std::span<const std::byte> bytes);

}  // namespace snug
