#include "snug/described/stream_clock.h"

#include <algorithm>

namespace snug::described {

void StreamClock::put(c10::StreamId stream, double seconds) {
  const std::lock_guard lock(mutex_);
  double& done = done_[stream];
  done += seconds;
  latest_ = std::max(latest_, done);
}

void StreamClock::let_wait(c10::StreamId stream, double until) {
  const std::lock_guard lock(mutex_);
  double& done = done_[stream];
  done = std::max(done, until);
}

double StreamClock::at(c10::StreamId stream) const {
  const std::lock_guard lock(mutex_);
  const auto found = done_.find(stream);
  return found == done_.end() ? 0 : found->second;
}

double StreamClock::when_done() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}

}  // namespace snug::described
