#include "snug/memory/pressure_handlers.h"

#include <algorithm>
#include <mutex>

namespace snug::memory {
namespace {

/// PressureHandlers whose ask() runs on this thread. It holds their mutex, and locking it again is undefined behavior.
thread_local std::vector<const PressureHandlers*> t_asking;

struct Asking {
  explicit Asking(const PressureHandlers& handlers) { t_asking.push_back(&handlers); }
  ~Asking() { t_asking.pop_back(); }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;
};

}  // namespace

std::shared_lock<std::shared_mutex> PressureHandlers::lock_to_read() const {
  std::shared_lock lock(mutex_, std::defer_lock);
  if (std::ranges::find(t_asking, this) == t_asking.end()) lock.lock();
  return lock;
}

bool PressureHandlers::any() const {
  const std::shared_lock lock = lock_to_read();
  return !handlers_.empty();
}

void PressureHandlers::add(PressureHandler* handler) {
  const std::unique_lock lock(mutex_);
  handlers_.push_back(handler);
}

void PressureHandlers::remove(PressureHandler* handler) {
  const std::unique_lock lock(mutex_);
  std::erase(handlers_, handler);
}

bool PressureHandlers::ask(Bytes bytes) {
  const std::shared_lock lock = lock_to_read();
  const Asking asking(*this);  // an allocation in a handler may call ask() again
  for (const Patience patience : {Patience::None, Patience::AMoment}) {
    for (auto handler = handlers_.rbegin(); handler != handlers_.rend(); ++handler) {
      calls_ += patience == Patience::None ? 1 : 0;
      if ((*handler)->make_room(bytes, patience)) return true;
    }
  }
  return false;
}

}  // namespace snug::memory
