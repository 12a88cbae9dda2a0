#include "snug/train/knobs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "snug/base/comma_list.h"
#include "snug/base/errors.h"
#include "snug/base/nearest.h"
#include "snug/train/config_applies.h"
#include "snug/train/precision.h"

namespace snug::train {
namespace {

constexpr std::int64_t kSmallTile = 8;      // MiB
constexpr std::int64_t kFewestTokens = 64;  // of which a matrix product still keeps the processor busy

std::optional<std::string> hindrance_in_backward(const Config& c) {
  if (c.optimizer.in_backward) return "it is on already";
  if (c.train.accumulate > 1) {
    return fmt::format("of train.accumulate = {} micro-batches the gradients are there until the last",
                       c.train.accumulate);
  }
  return why_not_in_backward(c);
}

std::optional<Config> updated_in_backward(Config c) {
  if (hindrance_in_backward(c)) return std::nullopt;
  c.optimizer.in_backward = true;
  return c;
}

/// Of half an update, of a run that fails, there is no state.
bool is_saved_before(const Config& c) { return c.output.folder.empty() || c.state.every > 0; }

std::optional<Config> with_streamed_weights(Config c) {
  const bool is_streamed = c.memory.weights == KeptIn::Streamed || c.memory.optimizer == KeptIn::Streamed;
  if (is_streamed || why_not_streamed(c)) return std::nullopt;
  c.memory.weights = KeptIn::Streamed;
  return c;
}

std::optional<Config> with_tiled_loss(Config c) {
  if (has_tiled_loss(c.model)) return std::nullopt;
  c.model.loss = LossKind::Tiled;
  return c;
}

std::optional<Config> with_small_tiles(Config c) {
  if (!has_tiled_loss(c.model) || c.model.loss_tile <= kSmallTile) return std::nullopt;
  c.model.loss_tile = kSmallTile;
  return c;
}

std::optional<Config> with_products(Config c) {
  if (c.model.attention == models::AttentionMethod::Products || !has_plain_attention(c)) return std::nullopt;
  c.model.attention = models::AttentionMethod::Products;
  return c;
}

std::optional<Config> in_shorter_parts(Config c) {
  // Masks of dropout would be others; of an adapter that is loaded its own files say.
  if ((c.lora.rank > 0 && c.lora.dropout > 0) || !c.lora.adapter.empty()) return std::nullopt;
  const std::int64_t all = c.train.batch / c.train.accumulate * c.model.sequence;
  const bool whole = c.model.mlp_tile == 0 || c.model.mlp_tile >= all;
  const std::int64_t fewer = whole ? all / 4 : c.model.mlp_tile / 2;
  if (fewer < kFewestTokens) return std::nullopt;
  c.model.mlp_tile = fewer;
  return c;
}

std::optional<Config> in_smaller_parts(Config c) {
  if (c.train.batch % (2 * c.train.accumulate) != 0) return std::nullopt;
  c.train.accumulate *= 2;
  return c;
}

std::optional<Config> with_8_bits(Config c) {
  if (c.optimizer.kind != "adamw") return std::nullopt;
  c.optimizer.kind = "adamw_8bit";
  return c;
}

template <Activations kTo>
std::optional<Config> with_activations(Config c) {
  if (c.memory.activations >= kTo || why_not_lossy(c)) return std::nullopt;
  c.memory.activations = kTo;
  return c;
}

template <Activations kTo>
Knob activations_in(std::string_view name, std::string_view help) {
  return {name,
          help,
          Knob::Changes::Gradients,
          "memory.activations",
          with_activations<kTo>,
          [](const Config& c) { return why_not_lossy(c).value_or("they have as few bits already"); },
          [](const Config& from, Config& to) { to.memory.activations = from.memory.activations; }};
}

}  // namespace

const std::vector<Knob>& knobs() {
  static const std::vector<Knob> all{
      {"in_backward", "optimizer.in_backward: weights are updated in the backward pass", Knob::Changes::Nothing,
       "optimizer.in_backward", updated_in_backward,
       [](const Config& c) { return hindrance_in_backward(c).value_or(""); },
       [](const Config& from, Config& to) { to.optimizer.in_backward = from.optimizer.in_backward; }, is_saved_before},
      {"streamed_weights", "memory.weights = \"streamed\": weights and optimizer state come while they are used",
       Knob::Changes::Nothing, "memory.weights", with_streamed_weights,
       [](const Config& c) { return why_not_streamed(c).value_or("they are already, or memory.optimizer is"); },
       [](const Config& from, Config& to) { to.memory.weights = from.memory.weights; }},
      {"tiled_loss", "model.loss = \"tiled\": the loss of a few rows of logits at a time", Knob::Changes::OrderOfSums,
       "model.loss", with_tiled_loss,
       [](const Config&) -> std::string { return "it needs a plain loss of a model whose family has a tiled one"; },
       [](const Config& from, Config& to) { to.model.loss = from.model.loss; }},
      {"loss_tile", "model.loss_tile: fewer rows at a time", Knob::Changes::OrderOfSums, "model.loss_tile",
       with_small_tiles,
       [](const Config&) -> std::string { return "it needs a tiled loss with a model.loss_tile above 8"; },
       [](const Config& from, Config& to) { to.model.loss_tile = from.model.loss_tile; }},
      {"mlp_tile", "model.mlp_tile: feed-forward parts of fewer tokens at a time", Knob::Changes::OrderOfSums,
       "model.mlp_tile", in_shorter_parts,
       [](const Config&) -> std::string {
         return "it needs parts of 64 tokens at the least, no lora.dropout and no lora.adapter";
       },
       [](const Config& from, Config& to) { to.model.mlp_tile = from.model.mlp_tile; }},
      {"attention", "model.attention = \"products\": attention by whole products over rows", Knob::Changes::Numerics,
       "model.attention", with_products,
       [](const Config&) -> std::string {
         return "it needs attention without dropout and masks, not in fp16, and not by products yet";
       },
       [](const Config& from, Config& to) { to.model.attention = from.model.attention; }},
      {"micro_batch", "train.accumulate: the batch in twice as many parts", Knob::Changes::OrderOfSums,
       "train.accumulate", in_smaller_parts,
       [](const Config&) -> std::string { return "it needs a train.batch that twice as many parts divide"; },
       [](const Config& from, Config& to) { to.train.accumulate = from.train.accumulate; }},
      activations_in<Activations::Bf16>("bf16_activations",
                                        "memory.activations = \"bf16\": backward gets saved tensors in bf16"),
      activations_in<Activations::Fp8>("fp8_activations",
                                       "memory.activations = \"fp8\": backward gets saved tensors in 8 bits (E4M3)"),
      activations_in<Activations::Int8>("int8_activations",
                                        "memory.activations = \"int8\": backward gets saved tensors in 256 levels"),
      activations_in<Activations::Int4>("int4_activations",
                                        "memory.activations = \"int4\": backward gets saved tensors in 16 levels"),
      {"adam8bit", "optimizer.kind = \"adamw_8bit\": moments in 8 bits", Knob::Changes::Numerics, "optimizer.kind",
       with_8_bits, [](const Config&) -> std::string { return "it needs optimizer.kind = \"adamw\""; },
       [](const Config& from, Config& to) { to.optimizer.kind = from.optimizer.kind; }},
  };
  return all;
}

std::vector<const Knob*> allowed_knobs(std::string_view allow) {
  std::vector<std::string> names;
  for (const Knob& knob : knobs()) names.emplace_back(knob.name);
  std::vector<const Knob*> allowed;
  const std::vector<std::string> written = split_at_commas(allow);
  for (const std::string& name : written) {
    if (name.empty() && &name == &written.back()) continue;  // after a comma at the end
    if (name.empty()) throw UsageError(fmt::format("memory.allow = \"{}\" has a comma with no name beside it", allow));
    const auto known = std::ranges::find(knobs(), name, &Knob::name);
    if (known == knobs().end()) {
      throw UsageError(fmt::format("memory.allow has \"{}\", which is not known; {}it takes {}", name,
                                   did_you_mean(name, names), fmt::join(names, ", ")));
    }
    allowed.push_back(&*known);
  }
  return allowed;
}

}  // namespace snug::train
