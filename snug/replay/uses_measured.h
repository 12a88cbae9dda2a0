#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "snug/record/step_clock.h"
#include "snug/replay/streamed_tensors.h"

namespace snug::replay {

/// Measures how a step that is recorded uses streamed tensors, where there are any.
class UsesMeasured {
 public:
  using Count = std::size_t;
  UsesMeasured(const std::shared_ptr<StreamedTensors>& streamed, record::StepClock& clock)
      : window_(streamed ? streamed->window() : nullptr) {
    if (window_) window_->with_uses([&](UsesLog& log) { log.measure(clock); });
  }
  ~UsesMeasured() {
    if (window_) window_->with_uses([](UsesLog& log) { log.stop_measuring(); });
  }
  UsesMeasured(const UsesMeasured&) = delete;
  UsesMeasured& operator=(const UsesMeasured&) = delete;

  [[nodiscard]] Count count() const {
    return window_ ? window_->with_uses([](const UsesLog& log) { return log.uses(); }) : 0;
  }
  void forget_after(Count uses) {
    if (window_) window_->with_uses([&](UsesLog& log) { log.forget_uses(uses); });
  }
  /// The clock is settled.
  [[nodiscard]] plan::StreamedStep finish(StepKind kind, double seconds) {
    if (!window_) return {};
    std::vector<Bytes> places = window_->places();
    return window_->with_uses([&](UsesLog& log) { return log.measured(kind, seconds, std::move(places)); });
  }

 private:
  std::shared_ptr<StreamWindow> window_;
};

}  // namespace snug::replay
