#pragma once

#include <cstdint>

namespace snug {

/// Whether the contents of what is dropped are remembered, and compared with what a replay makes of them.
enum class VerifyReplay : std::uint8_t {
  Off,
  Once,    ///< as Hashes: each value when it is first recomputed, and then one value in each step, in turn
  Hashes,  ///< 8 bytes for each 4 KiB: a difference is found to the 4 KiB
  Values   ///< all contents, in memory that no budget counts: a difference is found to the element
};

}  // namespace snug
