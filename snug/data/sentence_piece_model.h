#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace snug::data {

/// Checks what SentencePiece's library takes on trust in a model (a serialized ModelProto) and would read out of bounds
/// for: the double-array tries of the normalization rules, and the places in their text that these lead to. Also that
/// the message is whole and every score is a number. What the library itself checks is left to it. `name` is the file's
/// for errors. Throws UsageError.
void check_sentence_piece_model(std::span<const std::uint8_t> model, std::string_view name);

}  // namespace snug::data
