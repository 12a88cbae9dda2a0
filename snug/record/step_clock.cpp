#include "snug/record/step_clock.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <iterator>

#include "snug/base/clock.h"

namespace snug::record {

StepClock::StepClock(c10::Device device) : device_(device) { now(); }

StepClock::Moment StepClock::now() {
  const std::lock_guard lock(mutex_);
  if (device_.is_cpu()) {
    moments_.push_back(monotonic_seconds());
    return moments_.size() - 1;
  }
  // The default of PyTorch's events does not time.
  c10::Event& event = events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return events_.size() - 1;
}

void StepClock::leave_out(Moment from, Moment to) {
  const std::lock_guard lock(mutex_);
  not_its_own_.emplace_back(from, to);
}

void StepClock::settle() {
  const std::lock_guard lock(mutex_);
  constexpr double kMilli = 1e-3;
  moments_.reserve(events_.size());
  for (const c10::Event& event : events_) {
    event.synchronize();
    moments_.push_back(events_.front().elapsedTime(event) * kMilli);
  }
  events_.clear();
  for (const auto& [from, to] : not_its_own_) left_out_.push_back({moments_[from], moments_[to]});
  not_its_own_.clear();
  std::ranges::sort(left_out_, {}, &LeftOut::from);
  double covered = moments_.front(), sum = 0;
  for (LeftOut& part : left_out_) {
    part.from = std::max(part.from, covered);
    part.to = covered = std::max(part.from, part.to);
    part.before = sum;
    sum += part.to - part.from;
  }
}

double StepClock::left_out_before(double moment) const {
  const auto after = std::ranges::lower_bound(left_out_, moment, {}, &LeftOut::from);
  if (after == left_out_.begin()) return 0;
  const LeftOut& last = *std::prev(after);
  return last.before + std::min(last.to, moment) - last.from;
}

double StepClock::seconds(Moment from, Moment to) const {
  const double begin = moments_[from], end = moments_[to];
  return std::max(end - left_out_before(end) - (begin - left_out_before(begin)), 0.0);
}

}  // namespace snug::record
