#include "snug/train/save_clock.h"

#include <algorithm>

#include "snug/base/clock.h"
#include "snug/train/interrupt.h"

namespace snug::train {
namespace {

constexpr double kTrainsPerSave = 10;

double seconds_between_states(const Config& config) {
  const bool is_said = config.given.contains("state.interval");
  if (config.output.folder.empty() || (config.state.every > 0 && !is_said)) return 0;
  return config.state.interval;
}

}  // namespace

SaveClock::SaveClock(const Config& config) : interval_(seconds_between_states(config)) {}

void SaveClock::start() { since_ = monotonic_seconds(); }

void SaveClock::ask_if_due() const {
  if (interval_ > 0 && monotonic_seconds() - since_ >= std::max(interval_, kTrainsPerSave * took_)) request_save();
}

void SaveClock::begin_save() { began_ = monotonic_seconds(); }

void SaveClock::end_save() {
  since_ = monotonic_seconds();
  took_ = since_ - began_;
}

}  // namespace snug::train
