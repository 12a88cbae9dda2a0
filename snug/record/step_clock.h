#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <mutex>
#include <optional>
#include <vector>

namespace snug::record {

/// The clock of a step that is recorded, as its device has it: the host's on the CPU, where a kernel is over when its
/// call returns; elsewhere events in the streams, which the device passes when it gets there, so that nobody waits for
/// a kernel to time it. Any thread.
class StepClock {
 public:
  /// A moment that was noted. Of one clock.
  using Moment = std::size_t;

  /// Begins now.
  explicit StepClock(c10::Device device);

  /// Notes that the calling thread's current stream of the device has come as far as it has.
  Moment now();
  /// What lies between them is not the step's own. Such times may lie within each other.
  void leave_out(Moment from, Moment to);

  /// Waits for the device, once all moments are noted. Then:
  void settle();
  /// Seconds of the step itself between the two, which may be of several streams; 0 where they are not in this order.
  [[nodiscard]] double seconds(Moment from, Moment to) const;

 private:
  struct LeftOut {
    double from, to;
    double before = 0;  // of the others, in all
  };
  [[nodiscard]] double left_out_before(double moment) const;

  const c10::Device device_;
  std::mutex mutex_;
  std::vector<double> moments_;     // since the clock began; of devices once it is settled
  std::vector<c10::Event> events_;  // of devices
  std::vector<std::pair<Moment, Moment>> not_its_own_;
  std::vector<LeftOut> left_out_;  // in order, one after the other
};

}  // namespace snug::record
