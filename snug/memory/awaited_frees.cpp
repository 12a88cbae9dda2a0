#include "snug/memory/awaited_frees.h"

#include <chrono>
#include <thread>

namespace snug::memory {

AwaitedFrees::AwaitedFrees(DeviceMemory& memory) : memory_(memory) { memory_.add_pressure_handler(this); }
AwaitedFrees::~AwaitedFrees() { memory_.remove_pressure_handler(this); }

bool AwaitedFrees::make_room(Bytes bytes, Patience patience) noexcept {
  if (patience == Patience::None) return false;
  constexpr std::chrono::milliseconds kLongest(50);
  constexpr std::chrono::microseconds kLook(100);
  const Bytes before = memory_.stats().allocated;
  const auto until = std::chrono::steady_clock::now() + kLongest;
  while (std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(kLook);
    if (before - memory_.stats().allocated >= bytes) return true;
  }
  return false;  // whoever asked looks once more
}

}  // namespace snug::memory
