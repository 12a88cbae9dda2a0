#include "snug/train/hub_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include "snug/base/text_file.h"

namespace snug::train {

namespace fs = std::filesystem;

namespace {

bool is_part_of_name(std::string_view text) {
  const auto allowed = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.'; };
  return !text.empty() && !text.starts_with('.') && std::ranges::all_of(text, allowed);
}

/// An environment variable that is set and not empty.
std::optional<fs::path> folder_of(const char* variable) {
  const char* const value = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): nothing here sets any
  if (value == nullptr || *value == '\0') return std::nullopt;
  return fs::path(value);
}

std::optional<fs::path> hub_cache() {
  if (auto cache = folder_of("HF_HUB_CACHE")) return cache;
  if (const auto home = folder_of("HF_HOME")) return *home / "hub";
  if (const auto cache = folder_of("XDG_CACHE_HOME")) return *cache / "huggingface" / "hub";
  if (const auto home = folder_of("HOME")) return *home / ".cache" / "huggingface" / "hub";
  return std::nullopt;
}

}  // namespace

bool is_hub_name(const fs::path& path) {
  const std::string text = path.string();
  const std::size_t slash = text.find('/');
  std::error_code ignored;
  return slash != std::string::npos && is_part_of_name(std::string_view(text).substr(0, slash)) &&
         is_part_of_name(std::string_view(text).substr(slash + 1)) && path.extension() != ".gguf" &&
         !fs::exists(path, ignored);
}

std::optional<fs::path> cached_snapshot(const std::string& hub_name) {
  const auto cache = hub_cache();
  if (!cache) return std::nullopt;
  std::string folder = "models--" + hub_name;
  if (const std::size_t slash = folder.find('/'); slash != std::string::npos) folder.replace(slash, 1, "--");
  try {
    std::string revision = read_text(*cache / folder / "refs" / "main");
    revision.erase(revision.find_last_not_of(" \n\r") + 1);
    if (!is_part_of_name(revision)) return std::nullopt;
    fs::path snapshot = *cache / folder / "snapshots" / revision;
    std::error_code ignored;
    if (fs::exists(snapshot / "config.json", ignored)) return snapshot;
  } catch (const std::system_error&) {
    return std::nullopt;  // it was not downloaded
  }
  return std::nullopt;
}

std::string how_to_get(const std::string& hub_name) {
  if (const auto snapshot = cached_snapshot(hub_name))
    return fmt::format("there is no such file or folder here; the hub's model of this name is in {}: name that folder",
                       snapshot->string());
  return fmt::format(
      "there is no such file or folder here, and snug downloads nothing; get the hub's model of this name with: hf "
      "download {0} --local-dir {1}, and name the folder {1}",
      hub_name, hub_name.substr(hub_name.find('/') + 1));
}

}  // namespace snug::train
