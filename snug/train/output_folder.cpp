#include "snug/train/output_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "snug/base/errors.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;

constexpr std::array kTrained{"adapter", "model"};

/// Whether a path is a folder or in it; either may not be there yet.
bool is_within(const fs::path& path, const fs::path& folder) {
  std::error_code error;
  const fs::path inner = fs::weakly_canonical(path, error), outer = fs::weakly_canonical(folder, error);
  if (error) return false;
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

/// Whether one of its entries has a name that the run's files have, so that the folder is none of somebody's own.
bool has_entry(const fs::path& folder, std::initializer_list<std::string_view> beginnings) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (std::ranges::any_of(beginnings, [&](std::string_view with) { return name.starts_with(with); })) return true;
  }
  return false;
}

/// What there is of a run. A link to something else than a folder is somebody's own, and so is a folder that has none
/// of a run's files.
std::vector<std::string> left_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  const auto add_folder = [&](const char* name) {
    if (has_entry(folder / name, {"step-", "model.safetensors", "model-0", "adapter_model", "adapter_config"}))
      names.emplace_back(name);
  };
  add_folder("state");
  for (const char* const lines : {"metrics.jsonl", "memory.jsonl"}) {
    if (fs::is_regular_file(fs::symlink_status(folder / lines, error))) names.emplace_back(lines);
  }
  std::ranges::for_each(kTrained, add_folder);
  return names;
}

}  // namespace

void check_output_folder(const Config& config) {
  const fs::path folder = config.output.folder;
  if (folder.empty()) return;
  std::error_code error;
  if (const fs::path data = config.data.path; fs::is_directory(data, error) && is_within(folder, data)) {
    throw UsageError(fmt::format(
        "train: output.folder = {} is in data.path = {}, so that what runs write would be text to train on; write "
        "elsewhere, or give the texts a folder of their own",
        folder.string(), data.string()));
  }
  for (const auto& [key, path] : {std::pair{"model.path", config.model.path},
                                  {"lora.adapter", config.lora.adapter},
                                  {"data.path", config.data.path},
                                  {"data.tokenizer", config.data.tokenizer}}) {
    for (const char* name : kTrained) {
      if (path.empty() || !is_within(path, folder / name)) continue;
      throw UsageError(fmt::format(
          "train: {} = {} is what a run with output.folder = {} writes itself; use another output.folder, or go on "
          "with the run that wrote it (--resume)",
          key, path, folder.string()));
    }
  }
}

std::optional<FolderLock> lock_output_folder(const fs::path& folder) {
  if (folder.empty()) return std::nullopt;
  try {
    fs::create_directories(folder);
    auto taken = FolderLock::take(folder);
    if (!taken) {
      throw UsageError(
          fmt::format("train: another run writes to {}; wait for it, or use another output.folder", folder.string()));
    }
    return taken;
  } catch (const std::system_error& error) {
    const std::string what = fmt::format("train: output.folder = {} cannot be made or written: {}; name another",
                                         folder.string(), error.code().message());
    for (const std::errc wrong : {std::errc::not_a_directory, std::errc::filename_too_long}) {
      if (error.code() == wrong) throw UsageError(what);
    }
    throw Error(what);
  }
}

void put_earlier_run_aside(const fs::path& folder, report::Progress& progress) {
  const std::vector<std::string> names = left_in(folder);
  if (names.empty()) return;
  const auto aside = [&](int number) { return folder / fmt::format("earlier-{}", number); };
  std::error_code error;
  int number = 1;
  while (fs::exists(fs::symlink_status(aside(number), error))) ++number;
  fs::create_directory(aside(number), error);
  for (const std::string& name : names) {
    if (!error) fs::rename(folder / name, aside(number) / name, error);
    if (error) throw Error(fmt::format("train: {} cannot be put aside: {}", (folder / name).string(), error.message()));
  }
  progress.note(fmt::format("{} of an earlier run: in {} now", fmt::join(names, ", "), aside(number).string()));
}

}  // namespace snug::train
