#include "snug/memory/process_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "snug/memory/control_group.h"

namespace snug::memory {
namespace {

/// The value of "Name:   123 kB" in one of /proc's files, in bytes.
Bytes field(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, name.size(), name) == 0 && line[name.size()] == ':') {
      return std::stoll(line.substr(name.size() + 1)) * 1024;
    }
  }
  return 0;
}

}  // namespace

ProcessMemory process_memory() {
  return {field("/proc/self/status", "VmRSS"), field("/proc/self/status", "VmHWM"),
          field("/proc/self/status", "RssAnon")};
}

MachineMemory machine_memory() {
  MachineMemory memory{field("/proc/meminfo", "MemTotal"), field("/proc/meminfo", "MemAvailable")};
  if (const auto group = group_memory(); group && group->limit < memory.total) {
    memory.total = group->limit;
    memory.available = std::min(memory.available, group->available);
  }
  return memory;
}

std::optional<Bytes> memory_and_swap() {
  int overcommit = 0;
  std::ifstream("/proc/sys/vm/overcommit_memory") >> overcommit;
  Bytes memory = field("/proc/meminfo", "MemTotal"), swap = field("/proc/meminfo", "SwapTotal");
  if (overcommit == 1 || memory == 0) return std::nullopt;
  if (const auto group = group_memory(); group && group->limit < memory) {
    memory = group->limit;
    swap = std::min(swap, group->swap.value_or(swap));
  }
  return memory + swap;
}

}  // namespace snug::memory
