#pragma once

#include <c10/core/Storage.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/memory/offloaded.h"
#include "snug/record/recording.h"
#include "snug/record/step_clock.h"

namespace snug::replay {

/// While the scope lives, what this thread's operators are about to write is copied first, a storage once, out of the
/// device's memory (see memory::Offloaded): no limit of the device counts it. It is written back at the end, the latest
/// first, so that storages that were there before have the same bits then, and where they share memory, too. Memory
/// that was allocated inside of the scope is left alone, and so is what is gone by then, or freed. Operators say what
/// they write in their schemas, or in record::OperatorTraits; code that announces what it writes is heard, too
/// (record::Unrecorded); kernels that write without saying so are not noticed, nor are tensors without a storage.
/// Throws Error out of an operator whose arguments cannot be copied; it does not run. One thread, and those of autograd
/// that run its backward passes (see record::OperatorGate).
class UndoneWrites {
 public:
  /// The clock, if any, leaves out what each copy takes, and each undo(). It must outlive this.
  explicit UndoneWrites(record::StepClock* clock = nullptr);
  ~UndoneWrites();
  UndoneWrites(const UndoneWrites&) = delete;
  UndoneWrites& operator=(const UndoneWrites&) = delete;

  /// From now on that clock does, if any.
  void use(record::StepClock* clock) noexcept { clock_ = clock; }

  /// What is written while this lives is not copied.
  class Pause {
   public:
    explicit Pause(UndoneWrites& writes) : writes_(writes) { ++writes_.pauses_; }
    ~Pause() { --writes_.pauses_; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    UndoneWrites& writes_;
  };

  /// Writes everything back now. Throws Error when a copy cannot be read; the others are written.
  void undo();

  /// Storages that have been copied and not written back.
  [[nodiscard]] std::size_t copied() const noexcept { return copies_.size(); }
  [[nodiscard]] Bytes copied_bytes() const noexcept;

 private:
  // Weak: what the program lets go of goes, and an address is not taken for another storage's.
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  struct Copy {
    Weak storage;
    memory::Offloaded contents;
    c10::Storage of_others;  // which the storage only refers to, as that of a NumPy array does: there after it
  };
  void copy(const at::Tensor& written);

  record::StepClock* clock_;
  std::mutex mutex_;  // of what follows, while a backward pass may be running
  memory::AllocationTime began_ = memory::allocation_time();
  memory::Tiers tiers_;
  std::vector<Copy> copies_;
  std::unordered_set<const c10::StorageImpl*> copied_;
  std::atomic<int> pauses_ = 0;
  record::OperatorGate gate_;
};

}  // namespace snug::replay
