#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/plan/run/ledger.h"
#include "snug/plan/step/ids.h"

namespace snug::record {

class Tape;

/// Whether an operator runs in the step, or again in a replay.
enum class Run : std::uint8_t { First, Again };

/// Is told what happens on a tape, by the thread that does it and under the tape's mutex, unless it says otherwise. May
/// ask the tape, and must not change it.
class TapeObserver {
 public:
  virtual ~TapeObserver() = default;

  /// Whether a plan will be made of what it is told: the step is recorded as a planned one (see Tape::planned), and
  /// it is told nothing after Tape::detach(). Its answers to this and the next two must not change.
  [[nodiscard]] virtual bool measures() const { return false; }
  /// Whether it is to be told of results (see made).
  [[nodiscard]] virtual bool sees_results() const { return false; }

  /// Whether it is to be told of all that is recorded and of what backward asks for, which are calls for each operator
  /// and tensor. If not, it is told only of the events below that say "whether it sees the recording or not".
  [[nodiscard]] virtual bool sees_recording() const { return true; }

  // --- recording ---------------------------------------------------------------------------------------------------

  /// In front of an operator. May throw: then it does not run.
  virtual void op_begins(const Tape& /*tape*/) {}
  virtual void reads(const at::Tensor& /*argument*/) {}
  /// Around its kernel, without the mutex. Where the kernel throws, kernel_ends() is not called.
  virtual void kernel_begins() {}
  virtual void kernel_ends() {}
  /// It has run, and is on the tape.
  virtual void op_recorded(const Tape& /*tape*/, plan::OpId /*op*/) {}
  /// It has run, and is not on the tape: it made nothing (a view), or is never recorded (a collective).
  virtual void op_not_recorded() {}
  /// One of its results, told where sees_results(); the mutex is lent. May throw: the operator is on the tape, or has
  /// been replayed.
  virtual void made(const Tape& /*tape*/, plan::OpId /*op*/, const at::Tensor& /*result*/, Run /*run*/) {}

  /// A saved tensor stands for the value.
  virtual void saved(const Tape& /*tape*/, plan::ValueId /*value*/) {}
  /// Something unseen has written over it: no plan can keep it.
  virtual void displaced(plan::ValueId /*value*/) {}
  /// Around the end of the recording, where all goes that nothing needs.
  virtual void settle_begins(const Tape& /*tape*/) {}
  virtual void settle_ends() {}  ///< told whether it sees the recording or not

  // --- backward ----------------------------------------------------------------------------------------------------

  /// A backward node asked for a value. May throw: then it does not get it.
  virtual void unpacked(plan::ValueId /*value*/) {}
  /// Around what is no part of the step as it is: making an absent value again, or fetching it, or compressing one.
  /// They may nest; of the order of nested ones nothing is promised.
  virtual void aside_begins() {}
  virtual void aside_ends() {}
  /// An operator has run again. Told whether it sees the recording or not.
  virtual void replayed(const Tape& /*tape*/, plan::OpId /*op*/) {}
  /// Around the end of a saved tensor, and of what nothing needs then.
  virtual void release_begins(plan::ValueId /*value*/) {}
  virtual void release_ends() {}

  /// The step's backward pass is over, and has not failed. Told whether it sees the recording or not.
  virtual void backward_ends() {}

  // --- memory ------------------------------------------------------------------------------------------------------

  /// Memory is short, and the contents of a resident value are about to be dropped.
  virtual void evicts(const Tape& /*tape*/, plan::ValueId /*value*/) {}
  /// Memory was short, and the value has been dropped. Told whether it sees the recording or not.
  virtual void evicted(const Tape& /*tape*/, plan::ValueId /*value*/) {}
  /// The tape has let go of the contents. `freed`: the bytes of a storage that nobody else had.
  virtual void dropped(plan::ValueId /*value*/, std::optional<Bytes> /*freed*/) {}
};

/// Those of one tape. Costs nothing while there are none.
class TapeObservers {
 public:
  /// One that is there already is not told twice.
  void add(std::shared_ptr<TapeObserver> observer) {
    if (std::ranges::find(all_, observer) != all_.end()) return;
    measure_ = measure_ || observer->measures();
    see_results_ = see_results_ || observer->sees_results();
    if (observer->sees_recording()) recording_.push_back(observer.get());
    all_.push_back(std::move(observer));
  }
  void remove(const TapeObserver& observer) {
    std::erase(recording_, &observer);
    std::erase_if(all_, [&](const auto& one) { return one.get() == &observer; });
  }
  /// Those that measure are told nothing from now on.
  void remove_measuring() {
    std::erase_if(recording_, [](const TapeObserver* observer) { return observer->measures(); });
    std::erase_if(all_, [](const auto& observer) { return observer->measures(); });
    measure_ = false;
  }

  [[nodiscard]] bool any_sees_recording() const noexcept { return !recording_.empty(); }
  [[nodiscard]] bool measure() const noexcept { return measure_; }
  [[nodiscard]] bool see_results() const noexcept { return see_results_; }

  /// tell_recording(&TapeObserver::saved, value): to those that see the recording
  template <class... Parameters, class... Arguments>
  void tell_recording(void (TapeObserver::*event)(Parameters...), const Arguments&... arguments) const {
    for (TapeObserver* observer : recording_) (observer->*event)(arguments...);
  }
  /// To all.
  template <class... Parameters, class... Arguments>
  void tell(void (TapeObserver::*event)(Parameters...), const Arguments&... arguments) const {
    for (const auto& observer : all_) ((*observer).*event)(arguments...);
  }

 private:
  std::vector<std::shared_ptr<TapeObserver>> all_;
  std::vector<TapeObserver*> recording_;  // of those
  bool measure_ = false;
  bool see_results_ = false;
};

}  // namespace snug::record
