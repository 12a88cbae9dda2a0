#pragma once

#include <filesystem>
#include <optional>

#include "snug/base/bytes.h"

namespace snug::memory {

/// What the control groups of Linux, of a container or a service manager, allow this process in all, and what is left
/// of that; pages of files that can go count as left (docs.kernel.org, "Control Group v2" and "Memory Resource
/// Controller").
struct GroupMemory {
  Bytes limit = 0;  ///< or from where on the group is slowed down (memory.high), where that is less
  Bytes available = 0;
  std::optional<Bytes> swap{};  ///< the most that may be in swap as well; nullopt: as much as there is
};

/// Of the tightest group from this process's own up to the first, of either version; nullopt without a limit. `groups`:
/// where they are mounted; `own`: the list of this process's.
std::optional<GroupMemory> group_memory(const std::filesystem::path& groups = "/sys/fs/cgroup",
                                        const std::filesystem::path& own = "/proc/self/cgroup");

}  // namespace snug::memory
