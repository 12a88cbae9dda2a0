#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <future>
#include <memory>
#include <utility>

namespace snug::memory {

/// A place in a stream of an accelerator, what the stream had when it was made, or the end of what another thread of
/// the host does. One that is made of neither has been reached. Copies mark the same place. Any thread.
class StreamMark {
 public:
  StreamMark() = default;
  explicit StreamMark(c10::Stream stream) : event_(std::make_shared<c10::Event>(stream.device_type())) {
    event_->record(stream);
  }
  explicit StreamMark(std::shared_future<void> task) : task_(std::move(task)) {}

  /// Whether it may not have been reached yet.
  explicit operator bool() const noexcept { return event_ != nullptr || task_.valid(); }
  /// What the stream is given from now on begins once it is reached. For a thread's the host waits, as it does below.
  void let_wait(c10::Stream stream) const {
    if (event_) event_->block(stream);
    if (task_.valid()) task_.get();
  }
  /// The host waits. Throws what the thread has thrown.
  void wait() const {
    if (event_) event_->synchronize();
    if (task_.valid()) task_.get();
  }

 private:
  std::shared_ptr<c10::Event> event_;
  std::shared_future<void> task_;
};

}  // namespace snug::memory
