#pragma once

#include <memory>
#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/plan/step/device_part.h"

namespace snug::record {

/// What a step takes of one device's memory from mark to mark, as it would be if everything that autograd saves were
/// kept. One thread at a time.
class MemoryGauge {
 public:
  using Taken = plan::DevicePart::Taken;  ///< above what was there at the last mark

  /// `aside`: bytes that are allocated now but will not be when the planned step runs.
  explicit MemoryGauge(memory::DeviceMemory& memory, Bytes aside = 0);

  [[nodiscard]] memory::DeviceMemory& memory() const noexcept { return memory_; }

  /// Memory is counted from here on. Returns what is there, without what is aside.
  memory::Stats begin();
  /// The same, once it has begun.
  void rebase();

  /// Since the last mark, and marks.
  Taken take();
  /// The same of an operator; what died before it is for the next take().
  Taken take_of_operator();
  /// The highest since the last mark above that. Starts anew, where it was.
  Bytes take_peak();
  /// What is allocated now above that at the last mark.
  [[nodiscard]] Bytes grown() const;

  /// Others take their turn from here on, or this step does again: what they take is none of it.
  void leave();
  void enter();
  /// What the step has of the device while others take their turn.
  [[nodiscard]] Bytes own() const noexcept { return own_; }

  /// So many bytes have been freed, which an event of their own says.
  void died(Bytes bytes) noexcept { (away_ ? own_ : died_) += away_ ? -bytes : bytes; }
  /// So many bytes of contents have been evicted, by the calling thread: without a limit they would still be there.
  void evicted(Bytes bytes);
  /// The same of those of others whose turn it is not: at once, by any thread, and then, by this one, in the books.
  void keep_of_others(Bytes bytes) { meter_->keep(memory_.rounded(bytes)); }
  void evicted_of_others(Bytes bytes);
  void died_of_others(Bytes bytes) noexcept;

 private:
  memory::DeviceMemory& memory_;
  std::unique_ptr<memory::Meter> meter_;
  Bytes aside_;
  Bytes level_ = 0;    // allocated at the last mark
  Bytes evicted_ = 0;  // since then
  Bytes died_ = 0;     // since then
  Bytes own_ = 0;      // that the step had taken when it left
  Bytes entered_ = 0;  // allocated when its turn began
  bool away_ = false;
};

/// Of these devices. `aside`: by device; empty: none.
std::vector<MemoryGauge> gauges_of(const std::vector<memory::DeviceMemory*>& devices,
                                   const std::vector<Bytes>& aside = {});

}  // namespace snug::record
