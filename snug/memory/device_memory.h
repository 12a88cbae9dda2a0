#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/memory/process_memory.h"
#include "snug/memory/stats.h"
#include "snug/memory/tag.h"

namespace c10 {
struct Storage;
}

namespace snug::memory {

class Arena;

/// A moment in the order of all allocations of the process.
using AllocationTime = std::uint64_t;
/// Now: the time of the latest allocation of any DeviceMemory. Any thread.
AllocationTime allocation_time() noexcept;
/// That of the next one, for allocators.
AllocationTime next_allocation_time() noexcept;

/// How long somebody waits for another thread.
enum class Patience : std::uint8_t { None, AMoment };

/// Gives memory back when an allocation would pass the limit.
class PressureHandler {
 public:
  virtual ~PressureHandler() = default;
  /// Frees what it can towards `bytes` on the calling thread, which may be in the middle of an operator. Returns
  /// whether anything was freed; the allocation is then tried again. Must not throw. What it allocates itself may ask
  /// it for room in turn. `patience`: for another thread; all handlers are asked without any first.
  virtual bool make_room(Bytes bytes, Patience patience) noexcept = 0;
};

/// Measures a device's memory from its making on. Several may measure at once. One thread at a time; must not outlive
/// its DeviceMemory.
class Meter {
 public:
  virtual ~Meter() = default;
  struct Peak {
    Bytes allocated = 0;    ///< the highest there was
    Bytes all_at_once = 0;  ///< on the CPU as if all threads had been at their own highest at once (see HighWater)
  };
  /// Since the previous call, or the making.
  virtual Peak take() = 0;
  /// What the calling thread has just freed counts as if it were there until the next take().
  virtual void keep(Bytes bytes) = 0;
};

/// The memory of one device: counts every byte by tag, holds a hard limit, and asks for room before it refuses.
/// All functions may be called from any thread.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  [[nodiscard]] virtual c10::Device device() const = 0;
  /// What is printed on it; empty where nobody tells.
  [[nodiscard]] virtual std::string model() const { return {}; }
  /// When the device has done all that it was given, by a clock of its own that is counted and not measured; nullopt
  /// where it has none.
  [[nodiscard]] virtual std::optional<double> own_seconds() const { return {}; }

  [[nodiscard]] virtual Stats stats() const = 0;

  /// Starts all peaks again from the present figures.
  virtual void reset_peak() = 0;

  /// No more than `limit` bytes are mapped from now on; nullopt lifts the limit. A limit under what is allocated now
  /// is accepted: nothing more is handed out until enough is freed.
  virtual void set_limit(std::optional<Bytes> limit) = 0;

  /// Returns cached free memory to the system.
  virtual void release_cached() = 0;

  /// What the device has in all, and what is free of it; 0 where nobody tells.
  [[nodiscard]] virtual MachineMemory capacity() const = 0;

  /// The bytes that an allocation of `bytes` takes.
  [[nodiscard]] virtual Bytes rounded(Bytes bytes) const = 0;

  /// Whether the memory that the storage has now was handed out after `time`. False for memory that did not come from
  /// this allocator.
  [[nodiscard]] virtual bool allocated_since(const c10::Storage& storage, AllocationTime time) const = 0;

  /// Moves a block to another tag. Storages that did not come from this allocator, and were not adopted, are left
  /// alone.
  virtual void retag(const c10::Storage& storage, Tag tag) = 0;

  /// From now on counts a storage that LibTorch's own allocator made before this one was installed, until it is freed,
  /// tagged as weights. Others are left alone. Not while another thread uses the storage.
  virtual void adopt(const c10::Storage& storage) { static_cast<void>(storage); }

  /// Handlers are asked the newest first (PressureHandlers). Removing waits for a running call on another thread.
  virtual void add_pressure_handler(PressureHandler* handler) = 0;
  virtual void remove_pressure_handler(PressureHandler* handler) = 0;

  [[nodiscard]] virtual std::unique_ptr<Meter> meter() = 0;

  /// A range of this memory that places are chosen in; nullptr where addresses do not matter, as pages move (the
  /// CPU's).
  [[nodiscard]] virtual std::shared_ptr<Arena> make_arena() { return nullptr; }
  /// New blocks lie in this one from now on, in place of another that was in use, as long as somebody has it.
  virtual void use(const std::shared_ptr<Arena>& arena) { static_cast<void>(arena); }
};

/// The device that a text such as "cpu", "cuda" or "cuda:1" names, whether it is there or not; without an index it has
/// none. Throws UsageError for a text that names none.
c10::Device device_named(const std::string& name);

/// `device` with its index: where it has none, that of the one in use, which is the calling thread's affair and of this
/// moment. Whoever names a device more than once does so by what this returns. The CPU has no index.
c10::Device with_index(c10::Device device);

/// Finds the memory of a device by its index; nullptr: there is none.
using FindMemory = DeviceMemory* (*)(c10::DeviceIndex index);
/// Makes devices of a type known. Before their first use; what was known of the type before is no longer asked. The CPU
/// and CUDA are known.
void add_backend(c10::DeviceType type, FindMemory find);

/// The memory of with_index(device), of which there is one object until the process ends: keep the reference, and all
/// that is measured and limited is of one device. Throws UsageError for a device that this build has no backend for.
/// The CPU allocator is installed when the library is loaded; blocks that existed before are not counted until they are
/// adopted.
DeviceMemory& device_memory(c10::Device device);

/// The CPU, and the accelerators of this machine whose memory is known.
std::vector<c10::Device> devices();

/// DeviceMemory::allocated_since() of the storage's device; false where there is no backend for that.
bool allocated_since(const c10::Storage& storage, AllocationTime time);

/// DeviceMemory::retag() and adopt() of the storage's device; nothing where there is no backend for that.
void retag(const c10::Storage& storage, Tag tag);
void adopt(const c10::Storage& storage);

}  // namespace snug::memory
