#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace snug::models {

/// The parameter of Llama (see llama.h) that a tensor of a GGUF file of architecture "llama" holds:
/// "blk.3.attn_q.weight" is "model.layers.3.self_attn.q_proj.weight". nullopt for what is none ("rope_freqs.weight").
std::optional<std::string> llama_name_of_gguf(std::string_view name);

/// GGUF files have the rows of the query and key projections in another order, in which the two halves of a head that
/// turn together alternate. Row i of the model is row gguf_row(i, ...) of the file, for heads of that width.
std::int64_t llama_row_of_gguf(std::int64_t row, std::int64_t head_width);

/// Whether the rows of this parameter of Llama are in that order.
bool gguf_reorders_rows(std::string_view llama_name);

}  // namespace snug::models
