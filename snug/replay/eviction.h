#pragma once

#include <cstdint>
#include <memory>

#include "snug/memory/device_memory.h"
#include "snug/record/tape.h"

namespace snug::replay {

/// What making a value again costs.
enum class EvictionCost : std::uint8_t {
  Measured,  ///< seconds, as measured
  Timeless   ///< plan::timeless_seconds: the same in every run, so that what is refused once is refused again
};

/// The net under the plan: while it lives, an allocation that would pass the limit first drops values of the tape
/// that can be made again, the cheapest per byte first.
class Evictor final : public memory::PressureHandler {
 public:
  Evictor(std::shared_ptr<record::Tape> tape, memory::DeviceMemory& memory, EvictionCost cost);
  ~Evictor() override;
  Evictor(const Evictor&) = delete;
  Evictor& operator=(const Evictor&) = delete;

  bool make_room(Bytes bytes, memory::Patience patience) noexcept override;

 private:
  std::shared_ptr<record::Tape> tape_;
  memory::DeviceMemory& memory_;
  EvictionCost cost_;
};

}  // namespace snug::replay
