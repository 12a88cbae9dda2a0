#include "snug/train/carried_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

#include "snug/base/bytes.h"
#include "snug/base/errors.h"
#include "snug/data/tokenizer_format.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;

/// Beside a tokenizer's own file.
constexpr std::array<std::string_view, 9> kNames{"tokenizer_config.json",
                                                 "special_tokens_map.json",
                                                 "added_tokens.json",
                                                 "vocab.json",
                                                 "merges.txt",
                                                 "chat_template.jinja",
                                                 "additional_chat_templates",
                                                 "chat_template.json",
                                                 "generation_config.json"};
constexpr auto kLargest = static_cast<std::uintmax_t>(64_MiB);

bool is_within(const fs::path& path, const fs::path& folder) {
  return std::ranges::mismatch(folder, path).in1 == folder.end();
}

/// The folder that links of the model may lead to.
fs::path reach_of(const fs::path& model) {
  const fs::path folder = fs::canonical(model);
  return folder.parent_path().filename() == "snapshots" ? folder.parent_path().parent_path() : folder;
}

void check(const fs::path& file, const fs::path& reach) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format(
        "model: {} would be saved with the trained model, but {}; replace it with the file itself, or remove it",
        file.string(), why));
  };
  std::error_code error;
  const fs::path target = fs::canonical(file, error);
  if (error) refuse(fmt::format("it cannot be read: {}", error.message()));
  if (!is_within(target, reach))
    refuse(fmt::format("it is a link to {}, outside of the model's folder", target.string()));
  if (!fs::is_regular_file(target)) refuse("it is no regular file");
  if (const auto size = fs::file_size(target); size > kLargest)
    refuse(fmt::format("it has {}, and such files have at most {}", format_bytes(static_cast<Bytes>(size)),
                       format_bytes(static_cast<Bytes>(kLargest))));
}

}  // namespace

std::vector<fs::path> carried_files(const fs::path& model) {
  std::vector<fs::path> files;
  std::error_code ignored;
  if (model.empty() || !fs::is_directory(model, ignored)) return files;
  const fs::path reach = reach_of(model);
  const auto add = [&](const fs::path& name) {
    const fs::path path = model / name;
    if (!fs::exists(fs::symlink_status(path, ignored))) return;
    if (!fs::is_directory(fs::symlink_status(path, ignored))) {
      check(path, reach);
      files.push_back(name);
      return;
    }
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path)) {  // which follows no links
      if (entry.is_directory() && !entry.is_symlink()) continue;
      check(entry.path(), reach);
      files.push_back(name / entry.path().lexically_relative(path));
    }
  };
  for (const std::string_view name : kNames) add(name);
  for (const data::TokenizerFormat* format : data::tokenizer_formats()) {
    if (!format->file.empty()) add(format->file);
  }
  std::ranges::sort(files);
  files.erase(std::ranges::unique(files).begin(), files.end());
  return files;
}

}  // namespace snug::train
