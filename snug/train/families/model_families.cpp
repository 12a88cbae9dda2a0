#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "snug/base/errors.h"
#include "snug/base/nearest.h"
#include "snug/train/config_keys.h"
#include "snug/train/model_family.h"
#include "snug/train/model_files.h"

namespace snug::train {

// A family is a file here that defines <name>_family(), and a line below.
// clang-format off
#define SNUG_FAMILIES(family) \
  family(gpt) \
  family(gpt2) \
  family(llama) \
  // the end
// clang-format on

#define SNUG_DECLARE(name) const ModelFamily& name##_family();
SNUG_FAMILIES(SNUG_DECLARE)
#undef SNUG_DECLARE

const std::vector<const ModelFamily*>& model_families() {
#define SNUG_ADDRESS(name) &name##_family(),
  static const std::vector<const ModelFamily*> families{SNUG_FAMILIES(SNUG_ADDRESS)};
#undef SNUG_ADDRESS
  return families;
}
#undef SNUG_FAMILIES

void check_heads(const ModelConfig& config) {
  const std::int64_t each = config.width / config.heads;
  if (config.width % config.heads == 0) return;
  throw UsageError(fmt::format("configuration: model.width = {} is not divisible by model.heads = {}; use {} or {}",
                               config.width, config.heads, std::max(each, std::int64_t{1}) * config.heads,
                               (each + 1) * config.heads));
}

ModelConfig tiny_config(const ModelFamily& family) {
  ModelConfig config;
  config.kind = family.name;
  config.blocks = 1;
  config.width = 32;
  config.heads = 2;
  config.sequence = 16;
  config.vocabulary = 256;
  for (const auto& [key, value] : family.tiny) config.own.set(key, value);
  return config;
}

const ModelFamily& model_family(std::string_view name) {
  std::vector<std::string> names;
  for (const ModelFamily* family : model_families()) {
    if (family->name == name) return *family;
    names.emplace_back(family->name);
  }
  throw UsageError(fmt::format("model: the kind \"{}\" is not known; {}it must be one of {}", name,
                               did_you_mean(name, names), fmt::join(names, ", ")));
}

const ModelFamily& family_of(const ModelFiles& files) {
  const std::string architecture = files.architecture();
  std::vector<std::string_view> known;
  for (const ModelFamily* family : model_families()) {
    if (family->open == nullptr) continue;
    if (family->architecture == architecture) return *family;
    known.push_back(family->architecture);
  }
  throw UsageError(fmt::format("model: {}: its architecture is {}, and known are {}; use a model of one of these",
                               files.path().string(), quoted_text(architecture), fmt::join(known, ", ")));
}

}  // namespace snug::train
