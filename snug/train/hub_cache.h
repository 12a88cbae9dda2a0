#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace snug::train {

/// Whether `path` reads as the name of a model on the Hugging Face hub, "owner/name", and is no file or folder here,
/// nor the name of a GGUF file.
bool is_hub_name(const std::filesystem::path& path);

/// The folder of the files of "owner/name" that huggingface_hub has downloaded before, as refs/main of its cache names
/// it; none where there is none. The cache is where HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME or else HOME say
/// (https://huggingface.co/docs/huggingface_hub/guides/manage-cache).
std::optional<std::filesystem::path> cached_snapshot(const std::string& hub_name);

/// What to do about a model that is named as on the hub: snug downloads nothing.
std::string how_to_get(const std::string& hub_name);

}  // namespace snug::train
