#include "snug/train/config_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/plan/strategy.h"
#include "snug/train/knobs.h"
#include "snug/train/language_model.h"

namespace snug::train {
namespace {

bool declares(const auto& member, std::string_view key) {
  return std::ranges::count(member.keys, key, &OwnKey::name) > 0;
}

/// The names of those for which `holds`, as "a or b"; quoted where they are values of a key.
std::string names_of(const auto& members, std::string_view quote, const auto& holds) {
  std::vector<std::string> names;
  for (const auto* member : members) {
    if (holds(*member)) names.push_back(fmt::format("{}{}{}", quote, member->name, quote));
  }
  return fmt::format("{}", fmt::join(names, " or "));
}

std::string help_of(const OwnKey& key, const auto& members) {
  const auto has = [&](const auto& member) { return declares(member, key.name); };
  if (std::ranges::all_of(members, [&](const auto* member) { return has(*member); })) return std::string(key.help);
  return fmt::format("{}: {}", names_of(members, "", has), key.help);
}

std::vector<std::string> all_names(const auto& members) {
  std::vector<std::string> names;
  for (const auto* member : members) names.emplace_back(member->name);
  return names;
}

std::string instead(const OwnKey& key) { return key.instead.empty() ? "" : fmt::format("; {}", key.instead); }

}  // namespace

std::vector<std::string> family_names() { return all_names(model_families()); }
std::vector<std::string> optimizer_names() { return all_names(optim::optimizer_kinds()); }

std::string families_with_files() {
  return names_of(model_families(), "", [](const ModelFamily& family) { return family.open != nullptr; });
}
std::string families_with_tiled_loss() {
  return names_of(model_families(), "", [](const ModelFamily& family) {
    return std::holds_alternative<models::TiledLoss>(family.usual_loss);
  });
}

std::string knob_names() {
  std::vector<std::string_view> names;
  for (const Knob& knob : knobs()) names.push_back(knob.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string families_help(const OwnKey& key) { return help_of(key, model_families()); }
std::string optimizers_help(const OwnKey& key) { return help_of(key, optim::optimizer_kinds()); }

Applies with_families_of(const OwnKey& key) {
  const auto has = [name = key.name](const ModelFamily& family) { return declares(family, name); };
  const bool from_files = std::ranges::any_of(
      model_families(), [&](const ModelFamily* family) { return has(*family) && family->open != nullptr; });
  return {[has](const Config& c) { return c.model.path.empty() && has(model_family(c.model.kind)); },
          fmt::format("with model.kind = {}{}{}", names_of(model_families(), "\"", has),
                      from_files ? " and no model.path, whose files decide" : "", instead(key))};
}

Applies with_optimizers_of(const OwnKey& key) {
  const auto has = [name = key.name](const optim::OptimizerKind& kind) { return declares(kind, name); };
  return {[has](const Config& c) { return has(optim::optimizer_kind(c.optimizer.kind)); },
          fmt::format("with optimizer.kind = {}{}", names_of(optim::optimizer_kinds(), "\"", has), instead(key))};
}

bool same_compute(Compute a, Compute b, const Config& config) {
  const c10::DeviceType device = memory::device_named(config.train.device).type();
  return computed_in(a, device) == computed_in(b, device);
}

std::optional<std::string> why_not_in_backward(const Config& config) {
  if (config.optimizer.clip_norm > 0 && config.optimizer.clip_value == 0) {
    return fmt::format(
        "optimizer.clip_norm = {:g} scales every gradient by the norm of all, which is known when the last is there; "
        "set optimizer.clip_norm = 0, or optimizer.clip_value in its place",
        config.optimizer.clip_norm);
  }
  if (config.train.detect_anomaly) {
    return "train.detect_anomaly runs a step again from where it began, and half of its update would have been made; "
           "leave one of them out";
  }
  if (computed_in(config) == Compute::Fp16) {
    return "with precision.compute = \"fp16\" a step is left out when any gradient overflows, which is known when the "
           "last is there; leave one of them out";
  }
  return std::nullopt;
}

std::optional<std::string> why_not_streamed(const Config& config) {
  if (!plan::limit_of(config.memory.budget))
    return "what is streamed has its window in memory.budget; set it, in bytes";
  if (!config.memory.host_budget && !config.memory.disk_budget)
    return "there is nowhere to stream from; set memory.host_budget or memory.disk_budget";
  return std::nullopt;
}

std::optional<std::string> why_not_lossy(const Config& config) {
  if (!plan::may_compress(config.memory.strategy)) {
    return fmt::format("memory.strategy = \"{}\" leaves nothing to codecs; leave one of them out",
                       config.memory.strategy);
  }
  return std::nullopt;
}

bool has_tiled_loss(const ModelConfig& model) {
  return std::holds_alternative<models::TiledLoss>(vocabulary_loss(model));
}

bool drops_attention(const Config& config) {
  const ModelConfig& m = config.model;
  return m.path.empty() && model_family(m.kind).drops_attention && m.own.number("dropout") > 0;
}

bool attends_in_a_ring(const Config& config) {
  return config.parallel.context > 1 && config.parallel.context_by == models::ContextMethod::Ring;
}

bool has_plain_attention(const Config& config) {
  return !drops_attention(config) && config.data.packing == Packing::None && computed_in(config) != Compute::Fp16 &&
         !attends_in_a_ring(config);
}

bool same_loss(LossKind a, LossKind b, const Config& config) {
  const auto meant = [&](LossKind kind) {
    ModelConfig model = config.model;
    model.loss = kind;
    return vocabulary_loss(model);
  };
  return meant(a) == meant(b);
}

}  // namespace snug::train
