#pragma once

#include <atomic>
#include <cstdint>
#include <shared_mutex>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/memory/device_memory.h"

namespace snug::memory {

/// Those whom an allocator asks for room. Any thread; an allocation inside a handler's frees may ask again.
class PressureHandlers {
 public:
  void add(PressureHandler* handler);
  /// Waits for a running call on another thread.
  void remove(PressureHandler* handler);

  /// Asks them, the newest first, all without patience first, until one has freed something: of several forward passes
  /// that are kept the newest is mostly needed last.
  bool ask(Bytes bytes);
  [[nodiscard]] bool any() const;
  /// How often one was asked.
  [[nodiscard]] std::int64_t calls() const noexcept { return calls_; }

  /// Held while the process forks, so that no other thread is inside.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  /// In the child, in place of unlock(): what another thread has locked, this one may not unlock.
  void renew_lock() { new (&mutex_) std::shared_mutex; }

 private:
  [[nodiscard]] std::shared_lock<std::shared_mutex> lock_to_read() const;

  mutable std::shared_mutex mutex_;
  std::vector<PressureHandler*> handlers_;
  std::atomic<std::int64_t> calls_ = 0;
};

}  // namespace snug::memory
