#include "snug/memory/control_group.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>
#include <string_view>

namespace snug::memory {
namespace {

namespace fs = std::filesystem;

/// How a version names what it has of a group.
struct Names {
  const char *limit, *throttled, *used, *files, *swap;
  bool swap_has_memory;  // the limit is of both together
};
constexpr Names kSecond{.limit = "memory.max",
                        .throttled = "memory.high",
                        .used = "memory.current",
                        .files = "inactive_file",
                        .swap = "memory.swap.max",
                        .swap_has_memory = false};
constexpr Names kFirst{.limit = "memory.limit_in_bytes",
                       .throttled = nullptr,
                       .used = "memory.usage_in_bytes",
                       .files = "total_inactive_file",
                       .swap = "memory.memsw.limit_in_bytes",
                       .swap_has_memory = true};

std::optional<Bytes> number(std::string_view text) {
  Bytes value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  return read.ec == std::errc() ? std::optional(value) : std::nullopt;  // "max"
}

std::optional<Bytes> number_in(const fs::path& file) {
  std::string text;
  std::getline(std::ifstream(file), text);
  return number(text);
}

Bytes field_of(const fs::path& file, std::string_view name) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with(name) && line.size() > name.size() && line[name.size()] == ' ')
      return number(std::string_view(line).substr(name.size() + 1)).value_or(0);
  }
  return 0;
}

std::optional<GroupMemory> of_group(const fs::path& group, const Names& names) {
  // Without a limit the first version has a number near that of all addresses.
  constexpr Bytes kNone = Bytes{1} << 60;
  auto limit = number_in(group / names.limit);
  const auto used = number_in(group / names.used);
  // Beyond it processes are slowed down until they hardly run.
  const auto throttled = names.throttled != nullptr ? number_in(group / names.throttled) : std::nullopt;
  if (throttled) limit = std::min(*throttled, limit.value_or(kNone));
  if (!limit || !used || *limit >= kNone) return std::nullopt;
  const Bytes held = *used - std::min(*used, field_of(group / "memory.stat", names.files));
  std::optional<Bytes> swap = number_in(group / names.swap);
  if (swap && names.swap_has_memory) swap = std::max<Bytes>(*swap - *limit, 0);
  return GroupMemory{.limit = *limit, .available = std::max<Bytes>(*limit - held, 0), .swap = swap};
}

/// The group's path in the hierarchy that counts memory: a line is "number:controllers:path", and that of the second
/// version names none.
std::optional<std::string> path_of(const std::string& line, std::string_view controller) {
  const std::size_t first = line.find(':'), second = line.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos) return std::nullopt;
  const std::string controllers = ',' + line.substr(first + 1, second - first - 1) + ',';
  const bool is_it = controller.empty() ? controllers == ",," : controllers.find(controller) != std::string::npos;
  return is_it ? std::optional(line.substr(second + 1)) : std::nullopt;
}

}  // namespace

std::optional<GroupMemory> group_memory(const fs::path& groups, const fs::path& own) {
  std::optional<GroupMemory> tightest;
  const auto look_up_from = [&](const fs::path& root, const std::string& path, const Names& names) {
    // A container sees its own group as the first, and may be told a path that is not there.
    for (fs::path below = fs::path(path).relative_path();; below = below.parent_path()) {
      const auto found = of_group(root / below, names);
      if (found && (!tightest || found->available < tightest->available)) tightest = found;
      if (below.empty()) return;
    }
  };
  std::ifstream stream(own);
  for (std::string line; std::getline(stream, line);) {
    if (const auto path = path_of(line, "")) look_up_from(groups, *path, kSecond);
    if (const auto path = path_of(line, ",memory,")) look_up_from(groups / "memory", *path, kFirst);
  }
  return tightest;
}

}  // namespace snug::memory
