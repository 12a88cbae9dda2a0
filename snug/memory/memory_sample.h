#pragma once

#include <c10/core/Device.h>

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "snug/base/bytes.h"
#include "snug/memory/process_memory.h"
#include "snug/memory/stats.h"

namespace snug::memory {

class DeviceMemory;

/// Who has the process's resident memory. Of what the operating system counts nothing is left out: the parts, less
/// `untouched`, are all of it.
struct ResidentShares {
  Bytes tensors = 0;    ///< what the CPU's allocator has handed out
  Bytes cached = 0;     ///< free memory that it keeps
  Bytes untouched = 0;  ///< of these two, what nobody has written yet: it is not resident
  Bytes others = 0;     ///< code, objects, and what libraries allocate for themselves
  friend bool operator==(const ResidentShares&, const ResidentShares&) = default;
};

/// A device's memory, and the process's beside it, at one moment.
struct MemorySample {
  double seconds = 0;  ///< monotonic_seconds()
  Bytes allocated = 0;
  Bytes mapped = 0;  ///< see Stats
  std::optional<Bytes> limit;
  ByTag by_tag{};
  Bytes resident = 0;  ///< of the process; 0 where the operating system does not tell
  ResidentShares shares;
  MachineMemory device;  ///< all of it, and what is free; 0 where nobody tells
};

/// Of now. Reads files of the operating system, some 0.1 ms. Any thread.
MemorySample sample(const DeviceMemory& memory);

/// What of `resident` bytes is whose, where the CPU's allocator has `allocated` and holds `mapped`.
ResidentShares shares_of(Bytes resident, Bytes allocated, Bytes mapped);

/// {"weights": 0, ...}
nlohmann::ordered_json to_json(const ByTag& by_tag);
/// Without its time, whose beginning is whoever's took it.
nlohmann::ordered_json to_json(const MemorySample& sample);

}  // namespace snug::memory
