#pragma once

#include <filesystem>
#include <string>

namespace snug::train {

class Experiment;

/// Throws UsageError when save_trained() could not write what the experiment trains: a whole model whose configuration
/// has no form in config.json.
void check_can_save(const Experiment& experiment);

/// Writes what was trained into a folder, in place of what was there: the adapter as PEFT does ("adapter"), or the
/// model as transformers does ("model": config.json, model.safetensors, and its tokenizer.json or tokenizer.model where
/// its folder had one). Returns the path. Throws Error with the system's reason when something cannot be written.
std::string save_trained(const Experiment& experiment, const std::filesystem::path& folder);

}  // namespace snug::train
