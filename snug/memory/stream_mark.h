#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>

namespace snug::memory {

/// A place in a stream of an accelerator: what the stream had when it was made. One that is made without a stream has
/// been reached. Copies mark the same place. Any thread.
class StreamMark {
 public:
  StreamMark() = default;
  explicit StreamMark(c10::Stream stream) : event_(std::make_shared<c10::Event>(stream.device_type())) {
    event_->record(stream);
  }

  /// Whether it is in a stream.
  explicit operator bool() const noexcept { return event_ != nullptr; }
  /// What the stream is given from now on begins once it is reached.
  void let_wait(c10::Stream stream) const {
    if (event_) event_->block(stream);
  }
  /// The host waits.
  void wait() const {
    if (event_) event_->synchronize();
  }

 private:
  std::shared_ptr<c10::Event> event_;
};

}  // namespace snug::memory
