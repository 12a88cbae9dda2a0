#pragma once

#include "snug/memory/device_memory.h"

namespace snug::memory {

/// Has an allocation that finds no room wait, at most 50 ms, until other threads let go of so much: those of process
/// groups have their tensors until somewhat after the collective is over. As long as it lives. A front end's lock is
/// kept, if the thread has it: whoever has it may wait for the allocator.
class AwaitedFrees final : public PressureHandler {
 public:
  explicit AwaitedFrees(DeviceMemory& memory);
  ~AwaitedFrees() override;
  AwaitedFrees(const AwaitedFrees&) = delete;
  AwaitedFrees& operator=(const AwaitedFrees&) = delete;

  bool make_room(Bytes bytes, Patience patience) noexcept override;

 private:
  DeviceMemory& memory_;
};

}  // namespace snug::memory
