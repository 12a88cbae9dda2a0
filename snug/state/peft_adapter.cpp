#include "snug/state/peft_adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "snug/base/errors.h"
#include "snug/base/json_integer.h"
#include "snug/base/text_file.h"
#include "snug/state/damaged_file.h"
#include "snug/state/safetensors.h"

namespace snug::state {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kWeights = "adapter_model.safetensors";
constexpr std::string_view kPeftPrefix = "base_model.model.";
constexpr std::string_view kDown = ".lora_A.weight", kUp = ".lora_B.weight";

Json read_json(const fs::path& path) try {
  Json json = Json::parse(read_text(path), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw DamagedFile(path.string(), "it is no JSON object");
  return json;
} catch (const std::system_error& error) {
  throw UsageError(fmt::format("adapter: {} cannot be read: {}; name a folder as PEFT's save_pretrained writes it",
                               path.string(), error.code().message()));
}

/// Settings that say how an adapter began or what it was for. Any other that is set makes it more than products.
constexpr std::array<std::string_view, 24> kHarmless{"auto_mapping",
                                                     "base_model_name_or_path",
                                                     "bias",
                                                     "ensure_weight_tying",
                                                     "eva_config",
                                                     "exclude_modules",
                                                     "fan_in_fan_out",
                                                     "inference_mode",
                                                     "init_lora_weights",
                                                     "layers_pattern",
                                                     "layers_to_transform",
                                                     "lora_alpha",
                                                     "lora_dropout",
                                                     "megatron_core",
                                                     "modules_to_save",
                                                     "peft_type",
                                                     "peft_version",
                                                     "qalora_group_size",
                                                     "r",
                                                     "revision",
                                                     "runtime_config",
                                                     "target_modules",
                                                     "task_type",
                                                     "use_rslora"};

void refuse_more_than_products(const Json& json, const fs::path& path) {
  const auto refuse = [&](std::string_view what, const Json& value) {
    throw UsageError(fmt::format("adapter: {} has {} {}, which is not known here", path.string(), what, value.dump()));
  };
  if (const Json kind = json.value("peft_type", Json("LORA")); kind != "LORA") refuse("peft_type", kind);
  if (const Json bias = json.value("bias", Json("none")); bias != "none") refuse("bias", bias);
  // Others (pissa, olora, corda, loftq, ...) begin by changing the base.
  const Json start = json.value("init_lora_weights", Json(true));
  if (!start.is_boolean() && !start.is_null() && start != "gaussian" && start != "eva" && start != "orthogonal") {
    refuse("init_lora_weights", start);
  }
  for (const auto& [key, value] : json.items()) {
    const bool set = !value.is_null() && value != false && value != "" && !(value.is_structured() && value.empty());
    if (set && std::ranges::find(kHarmless, key) == kHarmless.end()) refuse(key, value);
  }
}

template <class T>
T member(const Json& json, const char* key, T otherwise, const fs::path& path) {
  if (!json.contains(key) || json[key].is_null()) return otherwise;
  try {
    if constexpr (std::is_same_v<T, std::int64_t>) {
      return json_integer<T>(json[key]);
    } else {
      return json[key].get<T>();
    }
  } catch (const std::exception&) {
    throw DamagedFile(path.string(), fmt::format("its {} is {}", key, json[key].dump()));
  }
}

/// Whether a tensor is of a module that one of the names is, or ends in at a dot.
bool is_inside(std::string_view tensor, std::string_view module) {
  return fmt::format(".{}", tensor).find(fmt::format(".{}.", module)) != std::string::npos;
}

/// Moves what belongs to modules_to_save to its place.
void take_whole(PeftAdapter& adapter, const fs::path& path) {
  for (const std::string& module : adapter.modules_to_save) {
    bool any = false;
    for (auto tensor = adapter.tensors.begin(); tensor != adapter.tensors.end();) {
      const auto next = std::next(tensor);
      if (is_inside(tensor->first, module)) {
        any = true;
        adapter.whole.insert(adapter.tensors.extract(tensor));
      }
      tensor = next;
    }
    any = any || std::ranges::any_of(adapter.whole, [&](const auto& w) { return is_inside(w.first, module); });
    if (!any) {
      throw UsageError(fmt::format("adapter: {}: it has no weights of {}, which is one of its modules_to_save",
                                   path.string(), module));
    }
  }
}

void check_pairs(const PeftAdapter& adapter, const fs::path& path) {
  const auto refuse = [&](const std::string& what) {
    throw UsageError(fmt::format("adapter: {}: {}", path.string(), what));
  };
  for (const auto& [name, tensor] : adapter.tensors) {
    const bool down = name.ends_with(kDown), up = name.ends_with(kUp);
    if (!down && !up) refuse(fmt::format("{} is no matrix of LoRA", name));
    const std::string module = name.substr(0, name.size() - kDown.size());
    const auto other = adapter.tensors.find(module + std::string(down ? kUp : kDown));
    if (other == adapter.tensors.end()) refuse(fmt::format("{} is there without its other matrix", name));
    if (tensor.shape.size() != 2 || tensor.shape[down ? 0 : 1] != adapter.rank) {
      refuse(fmt::format("{} has the shape {}, and the rank is {}", name, fmt::join(tensor.shape, "x"), adapter.rank));
    }
  }
  if (adapter.tensors.empty()) refuse("it has no matrices");
}

}  // namespace

std::vector<std::string> PeftAdapter::modules() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    if (name.ends_with(kDown)) names.push_back(name.substr(0, name.size() - kDown.size()));
  }
  return names;
}

PeftAdapter open_peft_adapter(const fs::path& folder) {
  const fs::path path = folder / kConfig;
  const Json json = read_json(path);
  refuse_more_than_products(json, path);
  PeftAdapter adapter;
  adapter.base = member<std::string>(json, "base_model_name_or_path", "", path);
  adapter.alpha = member<double>(json, "lora_alpha", 8, path);
  adapter.dropout = member<double>(json, "lora_dropout", 0, path);
  adapter.root_of_rank = member<bool>(json, "use_rslora", false, path);
  adapter.rank = member<std::int64_t>(json, "r", 8, path);
  adapter.task_type = member<std::string>(json, "task_type", "", path);
  adapter.fan_in_fan_out = member<bool>(json, "fan_in_fan_out", false, path);
  adapter.modules_to_save = member<std::vector<std::string>>(json, "modules_to_save", {}, path);
  if (json.contains("target_modules")) {
    const Json& targets = json["target_modules"];
    if (targets.is_string()) {
      adapter.targets = {targets.get<std::string>()};
    } else {
      adapter.targets = member<std::vector<std::string>>(json, "target_modules", {}, path);
    }
  }
  for (auto& [name, tensor] : open_safetensors(folder / kWeights).tensors) {
    const std::string own = name.starts_with(kPeftPrefix) ? name.substr(kPeftPrefix.size()) : name;
    adapter.tensors.emplace(own, tensor);
  }
  take_whole(adapter, folder / kWeights);
  check_pairs(adapter, folder / kWeights);
  return adapter;
}

void write_peft_adapter(const fs::path& folder, const PeftAdapter& adapter,
                        const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw Error(fmt::format("adapter: {} cannot be made: {}", folder.string(), error.message()));
  using Value = nlohmann::ordered_json;
  const auto none_if_empty = [](const auto& value) { return value.empty() ? Value() : Value(value); };
  const nlohmann::ordered_json json = {{"base_model_name_or_path", adapter.base},
                                       {"bias", "none"},
                                       {"fan_in_fan_out", adapter.fan_in_fan_out},
                                       {"inference_mode", true},
                                       {"init_lora_weights", true},
                                       {"lora_alpha", adapter.alpha},
                                       {"lora_dropout", adapter.dropout},
                                       {"modules_to_save", none_if_empty(adapter.modules_to_save)},
                                       {"peft_type", "LORA"},
                                       {"r", adapter.rank},
                                       {"target_modules", adapter.targets},
                                       {"task_type", none_if_empty(adapter.task_type)},
                                       {"use_dora", false},
                                       {"use_rslora", adapter.root_of_rank}};
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (const auto& [name, tensor] : tensors) named.emplace_back(std::string(kPeftPrefix) + name, tensor);
  write_safetensors(folder / kWeights, named, {{"format", "pt"}});
  try {
    write_text(folder / kConfig, json.dump(2) + "\n");
  } catch (const std::system_error& failed) {
    throw Error(fmt::format("adapter: {} cannot be written: {}", (folder / kConfig).string(), failed.code().message()));
  }
}

}  // namespace snug::state
