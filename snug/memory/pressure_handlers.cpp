#include "snug/memory/pressure_handlers.h"

#include <mutex>

namespace snug::memory {

void PressureHandlers::add(PressureHandler* handler) {
  const std::unique_lock lock(mutex_);
  handlers_.push_back(handler);
}

void PressureHandlers::remove(PressureHandler* handler) {
  const std::unique_lock lock(mutex_);
  std::erase(handlers_, handler);
}

bool PressureHandlers::ask(Bytes bytes) {
  // Shared, so that an allocation inside a handler's frees cannot deadlock.
  const std::shared_lock lock(mutex_);
  for (const Patience patience : {Patience::None, Patience::AMoment}) {
    for (auto handler = handlers_.rbegin(); handler != handlers_.rend(); ++handler) {
      calls_ += patience == Patience::None ? 1 : 0;
      if ((*handler)->make_room(bytes, patience)) return true;
    }
  }
  return false;
}

}  // namespace snug::memory
