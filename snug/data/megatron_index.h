#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "snug/data/token_layout.h"

namespace snug::data {

/// Reads the .idx file of a pair that Megatron-LM's preprocessing wrote: how the .bin file beside it, of `bin_bytes`
/// bytes, is cut into sequences and documents. The tokens are those of the sequences in their order. `name` is the
/// index's name for errors. Memory: that of the documents, and of sequences that do not lie one after the other.
/// Throws UsageError, naming the place and the rule, when the index is damaged, when it leads out of the .bin file, and
/// for element types that are no integers.
TokenLayout parse_megatron_index(std::span<const std::uint8_t> index, std::uint64_t bin_bytes, std::string_view name);

}  // namespace snug::data
