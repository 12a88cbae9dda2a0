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
/// `untouched`, are all of it. What of a tensor's memory nobody has written yet is not resident, and nobody knows how
/// much that is: it makes `others` smaller, and `untouched` larger once nothing is left of that.
struct ResidentShares {
  Bytes tensors = 0;    ///< what the CPU's allocator has handed out
  Bytes cached = 0;     ///< free memory that it keeps
  Bytes untouched = 0;  ///< of these two, what is certainly not resident
  Bytes others = 0;     ///< code, files that are mapped, objects, and what libraries allocate for themselves
  friend bool operator==(const ResidentShares&, const ResidentShares&) = default;
};

/// A device's memory, and the process's beside it, at one moment.
struct MemorySample {
  double seconds = 0;  ///< monotonic_seconds()
  Bytes allocated = 0;
  Bytes mapped = 0;  ///< see Stats
  std::optional<Bytes> limit;
  ByTag by_tag{};
  Bytes resident = 0;   ///< of the process; 0 where the operating system does not tell
  Bytes anonymous = 0;  ///< of that, what is not of files
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
