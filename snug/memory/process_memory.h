#pragma once

#include <optional>

#include "snug/base/bytes.h"

namespace snug::memory {

/// Resident memory of this process and its high-water mark, from the operating system; 0 where it does not tell.
struct ProcessMemory {
  Bytes resident = 0;
  Bytes resident_peak = 0;
  Bytes anonymous = 0;  ///< of the resident: what is not of files
};
ProcessMemory process_memory();

/// Physical memory of the machine and what is available now, or what a control group leaves this process of them; 0
/// where the operating system does not tell.
struct MachineMemory {
  Bytes total = 0;
  Bytes available = 0;
};
MachineMemory machine_memory();

/// The most memory that this process can ever fill: the machine's or its control group's, and swap. nullopt where the
/// operating system does not tell, or is set to promise any amount (vm.overcommit_memory = 1; docs.kernel.org,
/// "Overcommit Accounting").
std::optional<Bytes> memory_and_swap();

}  // namespace snug::memory
