#include "snug/models/gguf_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace snug::models {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;

constexpr std::array kOutside{
    Pair{"token_embd.weight", "model.embed_tokens.weight"},
    Pair{"output_norm.weight", "model.norm.weight"},
    Pair{"output.weight", "lm_head.weight"},
};

constexpr std::array kInLayer{
    Pair{"attn_norm.weight", "input_layernorm.weight"},    Pair{"attn_q.weight", "self_attn.q_proj.weight"},
    Pair{"attn_k.weight", "self_attn.k_proj.weight"},      Pair{"attn_v.weight", "self_attn.v_proj.weight"},
    Pair{"attn_output.weight", "self_attn.o_proj.weight"}, Pair{"ffn_norm.weight", "post_attention_layernorm.weight"},
    Pair{"ffn_gate.weight", "mlp.gate_proj.weight"},       Pair{"ffn_up.weight", "mlp.up_proj.weight"},
    Pair{"ffn_down.weight", "mlp.down_proj.weight"},
};

}  // namespace

std::optional<std::string> llama_name_of_gguf(std::string_view name) {
  if (const auto* const found = std::ranges::find(kOutside, name, &Pair::first); found != kOutside.end()) {
    return std::string(found->second);
  }
  constexpr std::string_view kLayer = "blk.";
  if (!name.starts_with(kLayer)) return std::nullopt;
  name.remove_prefix(kLayer.size());
  const std::size_t digits = name.find('.');
  if (digits == std::string_view::npos) return std::nullopt;
  const auto* const found = std::ranges::find(kInLayer, name.substr(digits + 1), &Pair::first);
  if (found == kInLayer.end()) return std::nullopt;
  return fmt::format("model.layers.{}.{}", name.substr(0, digits), found->second);
}

std::int64_t llama_row_of_gguf(std::int64_t row, std::int64_t head_width) {
  const std::int64_t head = row / head_width, inside = row % head_width, half = head_width / 2;
  return head * head_width + (inside % half) * 2 + inside / half;
}

bool gguf_reorders_rows(std::string_view llama_name) {
  return llama_name.ends_with("q_proj.weight") || llama_name.ends_with("k_proj.weight");
}

}  // namespace snug::models
