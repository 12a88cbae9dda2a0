#include "snug/memory/held_limit.h"

#include <pthread.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <vector>

namespace snug::memory {
namespace {

/// What is held of one device, the newest last.
struct Held {
  std::vector<const HeldLimit*> limits;
  std::optional<Bytes> before;
};

std::mutex g_mutex;

std::map<const DeviceMemory*, Held>& all_held() {
  static auto* held = [] {
    // A forked child has the parent's limits no more (see CpuMemory), nor threads that hold the lock.
    ::pthread_atfork([] { g_mutex.lock(); }, [] { g_mutex.unlock(); },
                     [] {
                       new (&g_mutex) std::mutex;
                       all_held().clear();
                     });
    return new std::map<const DeviceMemory*, Held>;  // sessions may outlive main()
  }();
  return *held;
}

}  // namespace

HeldLimit::HeldLimit(DeviceMemory& memory, std::optional<Bytes> limit) : memory_(memory), limit_(limit) {
  const std::lock_guard lock(g_mutex);
  Held& held = all_held()[&memory];
  if (held.limits.empty()) held.before = memory.stats().limit;
  memory.set_limit(limit);  // may throw, and then nothing is held
  held.limits.push_back(this);
}

HeldLimit::~HeldLimit() {
  const std::lock_guard lock(g_mutex);
  Held& held = all_held()[&memory_];
  if (std::ranges::find(held.limits, this) == held.limits.end()) return;  // the parent's
  const bool newest = held.limits.back() == this;
  std::erase(held.limits, this);
  if (!newest) return;
  try {
    memory_.set_limit(held.limits.empty() ? held.before : held.limits.back()->limit_);
  } catch (...) {
    // A device that an error has left unusable refuses everything, and that error is under way.
  }
}

bool HeldLimit::newest() const {
  const std::lock_guard lock(g_mutex);
  const auto held = all_held().find(&memory_);
  return held != all_held().end() && !held->second.limits.empty() && held->second.limits.back() == this;
}

}  // namespace snug::memory
