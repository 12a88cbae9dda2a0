#include "snug/train/saved_model.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "snug/base/durable_file.h"
#include "snug/base/errors.h"
#include "snug/base/text_file.h"
#include "snug/models/lora.h"
#include "snug/state/safetensors.h"
#include "snug/train/carried_files.h"
#include "snug/train/experiment.h"
#include "snug/train/state_of_team.h"
#include "snug/train/tensor_parts.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const std::error_code& error) {
  throw Error(fmt::format("saving the model: {}: {}", path.string(), error.message()));
}

/// A file of the pretrained model that was trained further; empty if there is none.
fs::path file_before(const Experiment& experiment, std::string_view name) {
  const fs::path model = experiment.config().model.path;
  std::error_code ignored;
  return !model.empty() && fs::exists(model / name, ignored) ? model / name : fs::path();
}

/// The text of config.json; nullopt for models that transformers has no such file of.
std::optional<std::string> config_json(const Experiment& experiment, c10::ScalarType dtype) {
  const auto text = experiment.language_model().config_json(dtype, experiment.ends());
  if (!text) return std::nullopt;
  auto config = nlohmann::ordered_json::parse(*text);
  // Where there is none, transformers takes that of the first Llama.
  const auto begin = experiment.begin();
  config["bos_token_id"] = begin ? nlohmann::ordered_json(*begin) : nlohmann::ordered_json();
  const fs::path own = file_before(experiment, "config.json");
  const auto before = own.empty() ? nlohmann::ordered_json()
                                  : nlohmann::ordered_json::parse(read_text(own), nullptr, /*allow_exceptions=*/false);
  for (const char* token : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (before.contains(token)) config[token] = before[token];
  }
  return config.dump(2) + "\n";
}

void save_model(const Experiment& experiment, const state::NamedSources& tensors, const fs::path& folder,
                const SaveOptions& options) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(folder, error);
  state::write_sharded_safetensors(folder, tensors, options.shard, {{"format", "pt"}});
  if (const auto config = config_json(experiment, tensors.front().second.dtype)) {
    try {
      write_text(folder / "config.json", *config);
    } catch (const std::system_error& failed) {
      fail(folder / "config.json", failed.code());
    }
  }
  const fs::path before = experiment.config().model.path;
  for (const fs::path& file : carried_files(before)) {
    const fs::path own = before / file, copy = folder / file;
    if (fs::equivalent(own, copy, error)) continue;
    fs::create_directories(copy.parent_path(), error);
    if (error) fail(copy.parent_path(), error);
    try {
      write_text(copy, read_text(own));
    } catch (const std::system_error& failed) {
      fail(copy, failed.code());
    }
  }
}

/// What is saved of it: the adapter, or the model.
state::NamedTensors what_is_saved(const Experiment& experiment) {
  state::NamedTensors tensors = models::lora_parameters(experiment.model());
  if (!tensors.empty()) {
    for (auto& whole : models::whole_modules(experiment.model())) tensors.push_back(std::move(whole));
    return tensors;
  }
  for (const auto& p : experiment.model().named_parameters()) tensors.emplace_back(p.key(), p.value());
  for (const auto& b : experiment.model().named_buffers()) tensors.emplace_back(b.key(), b.value());
  return tensors;
}

std::string save(const Experiment& experiment, const state::NamedSources& tensors, const fs::path& folder,
                 const SaveOptions& options) {
  for (const char* const name : {"adapter", "model"}) remove_unfinished(folder / name);  // of a run that was killed
  if (!models::lora_parameters(experiment.model()).empty()) {
    save_adapter(experiment.model(), experiment.config().model.path, folder / "adapter", tensors);  // as PEFT names it
    return (folder / "adapter").string();
  }
  save_model(experiment, tensors, folder / "model", options);
  return (folder / "model").string();
}

constexpr const char* kFile = "model";

/// The first process writes what the others send it.
std::string save_together(const Experiment& experiment, const fs::path& folder, const SaveOptions& options) {
  const state::NamedTensors tensors = what_is_saved(experiment);
  StateOfTeam team(experiment.team(), {{kFile, parts_of(experiment, tensors)}});
  std::string path;
  team.write_together([&] {
    const state::TensorSources whole = team.divided().at(kFile).all;
    state::NamedSources in_order;
    for (const auto& [name, tensor] : tensors) in_order.emplace_back(name, whole.at(name));
    path = save(experiment, in_order, folder, options);
  });
  return path;
}

}  // namespace

void check_can_save(const Experiment& experiment) {
  if (!models::lora_parameters(experiment.model()).empty()) return;
  (void)config_json(experiment, at::kFloat);
  (void)carried_files(experiment.config().model.path);
}

std::string save_trained(const Experiment& experiment, const fs::path& folder, const SaveOptions& options) {
  if (!experiment.parameter_parts().empty()) return save_together(experiment, folder, options);
  if (!experiment.team().is_first()) return "";
  const state::NamedTensors tensors = what_is_saved(experiment);
  return save(experiment, {tensors.begin(), tensors.end()}, folder, options);
}

}  // namespace snug::train
