#pragma once

#include <c10/core/Device.h>

#include <memory>

namespace snug::parallel {

/// The clock that rehearsed processes wait by. Any thread.
class RehearsedTime {
 public:
  virtual ~RehearsedTime() = default;
  /// In seconds, as far as the calling thread has come.
  virtual double now() = 0;
  /// Lets the calling thread come no further before that time; not earlier than it is.
  virtual void wait_until(double seconds) = 0;
};

/// That of processes that compute on this device: the host's, whose threads sleep, or the clock of a described one (see
/// described/described_device.h), whose current stream waits.
std::shared_ptr<RehearsedTime> rehearsed_time(c10::Device device);

}  // namespace snug::parallel
