#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/plan/run/window_book.h"
#include "snug/plan/run/window_cost.h"
#include "snug/record/step_clock.h"
#include "snug/replay/step_kind.h"

namespace snug::replay {

/// Which streamed tensors a step uses, in order; and when, of a step that is recorded. Not synchronized.
class UsesLog {
 public:
  void note(const plan::StreamedUse& use);
  /// So many bytes were used together.
  void note_at_once(Bytes bytes) { at_once_ = bytes > at_once_ ? bytes : at_once_; }
  void forget(plan::StreamedId tensor);

  /// A step of that kind begins. Returns what the last one of the kind has used: nothing where there was none.
  const std::vector<plan::StreamedUse>& next_step(StepKind kind);

  /// A step is recorded by this clock from here on, until measured() or stop_measuring().
  void measure(record::StepClock& clock);
  /// How many uses it has had so far, and that those after so many are none of it.
  [[nodiscard]] std::size_t uses() const noexcept { return seen_.size(); }
  void forget_uses(std::size_t from);
  /// It is over, was of that kind, took so long, and its clock is settled. `places`: see plan::StreamedStep.
  [[nodiscard]] plan::StreamedStep measured(StepKind kind, double seconds, std::vector<Bytes> places);
  void stop_measuring() noexcept { clock_ = nullptr; }
  /// The most since measure().
  [[nodiscard]] Bytes at_once() const noexcept { return at_once_; }

  /// What happens in its life is left out of the clock.
  class Aside {
   public:
    explicit Aside(const UsesLog& log) : clock_(log.clock_), from_(clock_ != nullptr ? clock_->now() : 0) {}
    ~Aside() {
      if (clock_ != nullptr) clock_->leave_out(from_, clock_->now());
    }
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;

   private:
    record::StepClock* clock_;
    record::StepClock::Moment from_;
  };

 private:
  struct Seen {
    plan::StreamedUse use;
    record::StepClock::Moment at = 0;  // where somebody measures
  };
  std::vector<Seen> seen_;  // since the step began
  record::StepClock* clock_ = nullptr;
  record::StepClock::Moment began_ = 0;
  Bytes at_once_ = 0;
  StepKind kind_ = StepKind::First;  // of the step
  std::map<StepKind, std::vector<plan::StreamedUse>> orders_;
};

}  // namespace snug::replay
