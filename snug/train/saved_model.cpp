#include "snug/train/saved_model.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/base/text_file.h"
#include "snug/models/lora.h"
#include "snug/state/safetensors.h"
#include "snug/train/experiment.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;

/// What transformers reads beside the weights and config.json, and training does not change.
constexpr std::array kCarriedOver{
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json",     "merges.txt",      "chat_template.jinja",   "chat_template.json",      "generation_config.json"};

[[noreturn]] void fail(const fs::path& path, const std::error_code& error) {
  throw Error(fmt::format("saving the model: {}: {}", path.string(), error.message()));
}

/// A file of the pretrained model that was trained further; empty if there is none.
fs::path file_before(const Experiment& experiment, const char* name) {
  const fs::path model = experiment.config().model.path;
  std::error_code ignored;
  return !model.empty() && fs::exists(model / name, ignored) ? model / name : fs::path();
}

/// The text of config.json; nullopt for models that transformers has no such file of.
std::optional<std::string> config_json(const Experiment& experiment, c10::ScalarType dtype) {
  const auto text = experiment.language_model().config_json(dtype, experiment.ends());
  if (!text) return std::nullopt;
  const fs::path own = file_before(experiment, "config.json");
  if (own.empty()) return text;
  // Where there are none, transformers takes those of the first Llama.
  const auto before = nlohmann::ordered_json::parse(read_text(own), nullptr, /*allow_exceptions=*/false);
  auto config = nlohmann::ordered_json::parse(*text);
  for (const char* token : {"bos_token_id", "pad_token_id"}) {
    if (before.contains(token)) config[token] = before[token];
  }
  return config.dump(2) + "\n";
}

void save_model(const Experiment& experiment, const fs::path& folder, const SaveOptions& options) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& p : experiment.model().named_parameters()) tensors.emplace_back(p.key(), p.value());
  for (const auto& b : experiment.model().named_buffers()) tensors.emplace_back(b.key(), b.value());
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(folder, error);
  state::write_sharded_safetensors(folder, tensors, options.shard, {{"format", "pt"}});
  if (const auto config = config_json(experiment, tensors.front().second.scalar_type())) {
    try {
      write_text(folder / "config.json", *config);
    } catch (const std::system_error& failed) {
      fail(folder / "config.json", failed.code());
    }
  }
  for (const char* file : kCarriedOver) {
    const fs::path own = file_before(experiment, file), copy = folder / file;
    if (own.empty()) {
      fs::remove(copy, error);  // of a model that was here before
    } else if (!fs::equivalent(own, copy, error)) {
      fs::copy_file(own, copy, fs::copy_options::overwrite_existing, error);
      if (error) fail(copy, error);
    }
  }
}

}  // namespace

void check_can_save(const Experiment& experiment) {
  if (models::lora_parameters(experiment.model()).empty()) (void)config_json(experiment, at::kFloat);
}

std::string save_trained(const Experiment& experiment, const fs::path& folder, const SaveOptions& options) {
  if (!models::lora_parameters(experiment.model()).empty()) {
    save_adapter(experiment.model(), experiment.config().model.path, folder / "adapter");  // as PEFT names it
    return (folder / "adapter").string();
  }
  save_model(experiment, folder / "model", options);
  return (folder / "model").string();
}

}  // namespace snug::train
