#pragma once

#include <c10/core/Stream.h>

#include <map>
#include <mutex>

namespace snug::described {

/// When the streams of a described device have done what they were given: counted, and not measured. The host takes no
/// time for what it does itself, and waits for none of what it starts. Any thread.
class StreamClock {
 public:
  /// What takes so many seconds comes into the stream, behind all that is there.
  void put(c10::StreamId stream, double seconds);
  /// What comes into the stream from now on begins no earlier.
  void let_wait(c10::StreamId stream, double until);
  /// When the stream has done all that it has.
  [[nodiscard]] double at(c10::StreamId stream) const;
  /// The same of all.
  [[nodiscard]] double when_done() const;

 private:
  mutable std::mutex mutex_;
  std::map<c10::StreamId, double> done_;
  double latest_ = 0;
};

}  // namespace snug::described
