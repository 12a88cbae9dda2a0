#pragma once

#include <cstdint>

namespace snug {

/// Whether the contents of what is dropped are remembered, and compared with what a replay makes of it.
enum class VerifyReplay : std::uint8_t {
  Off,
  Hashes,  ///< 8 bytes for each 4 KiB: a difference is found to the 4 KiB
  Values   ///< all of it, in memory that no budget counts: a difference is found to the element
};

}  // namespace snug
