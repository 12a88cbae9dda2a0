#include "snug/state/peft_adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include "snug/base/errors.h"
#include "snug/base/json_field.h"
#include "snug/base/text_file.h"
#include "snug/state/safetensors.h"

namespace snug::state {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kWeights = "adapter_model.safetensors";
constexpr std::string_view kPeftPrefix = "base_model.model.";
constexpr std::string_view kDown = ".lora_A.weight", kUp = ".lora_B.weight";

std::string config_text(const fs::path& path) try { return read_text(path); } catch (const std::system_error& error) {
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

void refuse_more_than_products(const JsonField& json) {
  if (const auto kind = json.find("peft_type"); kind && !kind->is("LORA")) kind->refuse("\"LORA\"");
  if (const auto bias = json.find("bias"); bias && !bias->is("none")) bias->refuse("\"none\"");
  // Others (pissa, olora, corda, loftq, ...) begin by changing the base.
  if (const auto start = json.find("init_lora_weights"); start && !value_as<bool>(start->value())) {
    const std::array known{"gaussian", "eva", "orthogonal"};
    if (std::ranges::none_of(known, [&](const char* way) { return start->is(way); })) {
      start->refuse("true, false, \"gaussian\", \"eva\" or \"orthogonal\", which leave the base as it is");
    }
  }
  for (const auto& [key, field] : json.members()) {
    const bool holds_others = field.is_array() || field.is_object();
    const bool set =
        holds_others ? field.size() > 0 : !field.is_null() && !field.is("") && field.value() != FieldValue(false);
    if (set && std::ranges::find(kHarmless, key) == kHarmless.end()) {
      field.refuse("left out, as only products of two matrices are known");
    }
  }
}

/// The module of a parameter, or one around it, whose name ends so, at a dot or not: PEFT means all such modules.
std::optional<std::string> module_meant(std::string_view parameter, std::string_view end) {
  if (end.empty()) return std::nullopt;
  for (std::size_t dot = parameter.find('.'); dot != std::string_view::npos; dot = parameter.find('.', dot + 1)) {
    if (const std::string_view module = parameter.substr(0, dot); module.ends_with(end)) return std::string(module);
  }
  return std::nullopt;
}

/// Moves what belongs to modules_to_save to its place, and names the modules in full where an end at a dot means fewer.
void take_whole(PeftAdapter& adapter, const fs::path& path) {
  std::vector<std::string> names;
  for (const std::string& end : adapter.modules_to_save) {
    std::set<std::string> meant;
    for (auto tensor = adapter.tensors.begin(); tensor != adapter.tensors.end();) {
      const auto next = std::next(tensor);
      if (auto module = module_meant(tensor->first, end)) {
        meant.insert(*std::move(module));
        adapter.whole.insert(adapter.tensors.extract(tensor));
      }
      tensor = next;
    }
    for (const auto& [name, tensor] : adapter.whole) {
      if (auto module = module_meant(name, end)) meant.insert(*std::move(module));
    }
    if (meant.empty()) {
      throw UsageError(
          fmt::format("adapter: {}: it has no weights of {}, which is one of its modules_to_save", path.string(), end));
    }
    const auto at_dot = [&](const std::string& module) { return module == end || module.ends_with("." + end); };
    if (std::ranges::all_of(meant, at_dot)) {
      names.push_back(end);
    } else {
      names.insert(names.end(), meant.begin(), meant.end());
    }
  }
  adapter.modules_to_save = std::move(names);
}

/// PEFT saves an output projection that has an adapter with the adapter.
void take_bases(PeftAdapter& adapter) {
  constexpr std::string_view kBase = ".base_layer.weight";
  for (auto tensor = adapter.tensors.begin(); tensor != adapter.tensors.end();) {
    const auto next = std::next(tensor);
    if (tensor->first.ends_with(kBase)) {
      auto node = adapter.tensors.extract(tensor);
      node.key().resize(node.key().size() - kBase.size());
      adapter.bases.insert(std::move(node));
    }
    tensor = next;
  }
}

void take_tied_head(PeftAdapter& adapter) {
  const auto head = adapter.tensors.find(kOutputProjection);
  if (adapter.tied && head != adapter.tensors.end()) adapter.whole.insert(adapter.tensors.extract(head));
}

void check_pairs(const PeftAdapter& adapter, const fs::path& path) {
  const auto refuse = [&](const std::string& what) {
    throw UsageError(fmt::format("adapter: {}: {}", path.string(), what));
  };
  for (const auto& [name, tensor] : adapter.tensors) {
    if (name.find(".lora_embedding_") != std::string::npos) {
      refuse(fmt::format("{} is of an adapter of an embedding, which is not known; train it whole with modules_to_save",
                         name));
    }
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
  const JsonFile file(config_text(path), {.name = fmt::format("adapter: {}", path.string()),
                                          .cure = "use a LoRA adapter as PEFT's save_pretrained writes it"});
  const JsonField json = file.root();
  refuse_more_than_products(json);
  PeftAdapter adapter;
  adapter.base = json.optional<std::string>("base_model_name_or_path", "");
  adapter.alpha = json.optional("lora_alpha", 8.0);
  adapter.dropout = json.optional("lora_dropout", 0.0, kFraction);
  adapter.root_of_rank = json.optional("use_rslora", false);
  adapter.rank = json.optional("r", std::int64_t{8}, Range{1});
  adapter.task_type = json.optional<std::string>("task_type", "");
  adapter.fan_in_fan_out = json.optional("fan_in_fan_out", false);
  adapter.modules_to_save = json.optional<std::vector<std::string>>("modules_to_save", {});
  adapter.tied = json.optional("ensure_weight_tying", false);
  if (const auto targets = json.find("target_modules")) {
    adapter.targets =
        targets->is_array() ? targets->as<std::vector<std::string>>() : std::vector{targets->as<std::string>()};
  }
  for (auto& [name, tensor] : open_safetensors(folder / kWeights).tensors) {
    const std::string own = name.starts_with(kPeftPrefix) ? name.substr(kPeftPrefix.size()) : name;
    adapter.tensors.emplace(own, tensor);
  }
  take_whole(adapter, folder / kWeights);
  take_tied_head(adapter);
  take_bases(adapter);
  check_pairs(adapter, folder / kWeights);
  return adapter;
}

void write_peft_adapter(const fs::path& folder, const PeftAdapter& adapter, const NamedSources& tensors) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw Error(fmt::format("adapter: {} cannot be made: {}", folder.string(), error.message()));
  using Value = nlohmann::ordered_json;
  const auto none_if_empty = [](const auto& value) { return value.empty() ? Value() : Value(value); };
  const nlohmann::ordered_json json = {{"base_model_name_or_path", adapter.base},
                                       {"bias", "none"},
                                       {"ensure_weight_tying", adapter.tied},
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
  NamedSources named;
  for (const auto& [name, tensor] : tensors) named.emplace_back(std::string(kPeftPrefix) + name, tensor);
  write_safetensors(folder / kWeights, named, {{"format", "pt"}});
  try {
    write_text(folder / kConfig, json.dump(2) + "\n");
  } catch (const std::system_error& failed) {
    throw Error(fmt::format("adapter: {} cannot be written: {}", (folder / kConfig).string(), failed.code().message()));
  }
}

}  // namespace snug::state
