#pragma once

#include <memory>

#include "snug/memory/device_memory.h"
#include "snug/record/tape.h"

namespace snug::replay {

/// The net under the plan: while it lives, an allocation that would pass the limit first drops values of the tape
/// that can be made again, the cheapest in seconds per byte first.
class Evictor final : public memory::PressureHandler {
 public:
  Evictor(std::shared_ptr<record::Tape> tape, memory::DeviceMemory& memory);
  ~Evictor() override;
  Evictor(const Evictor&) = delete;
  Evictor& operator=(const Evictor&) = delete;

  bool make_room(Bytes bytes) noexcept override;

 private:
  std::shared_ptr<record::Tape> tape_;
  memory::DeviceMemory& memory_;
};

}  // namespace snug::replay
