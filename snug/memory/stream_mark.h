#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <utility>

#include "snug/base/errors.h"

namespace snug::memory {

/// A place in a stream of an accelerator, what the stream had when it was made, or the end of what another thread of
/// the host does. One that is made of neither has been reached. Copies mark the same place. Any thread.
class StreamMark {
 public:
  StreamMark() = default;
  explicit StreamMark(c10::Stream stream) : event_(std::make_shared<c10::Event>(stream.device_type())) {
    event_->record(stream);
  }
  explicit StreamMark(std::shared_future<void> task) : task_(std::move(task)), process_(::getpid()) {}

  /// The same place, for who waits for it and does not need what is done there: nobody is told if that has failed.
  [[nodiscard]] StreamMark without_outcome() const {
    StreamMark mark = *this;
    mark.tells_ = false;
    return mark;
  }

  /// Whether it may not have been reached yet.
  explicit operator bool() const noexcept { return event_ != nullptr || task_.valid(); }
  /// Whether nothing would have to wait for it, even if what it is of has failed.
  [[nodiscard]] bool reached() const {
    return (!event_ || event_->query()) &&
           (!task_.valid() || task_.wait_for(std::chrono::seconds(0)) == std::future_status::ready);
  }
  /// What the stream is given from now on begins once it is reached. For a thread's the host waits, as it does below.
  void let_wait(c10::Stream stream) const {
    if (event_) event_->block(stream);
    wait_for_thread();
  }
  /// The host waits. Throws what the thread has thrown; Error in a process that was forked meanwhile, where it has
  /// none.
  void wait() const {
    if (event_) event_->synchronize();
    wait_for_thread();
  }

  /// The host waits for the thread alone, where there is one. Throws as wait().
  void wait_for_thread() const {
    if (!task_.valid()) return;
    const bool is_over = task_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    if (!is_over && ::getpid() != process_)
      throw Error("offload: this process was forked while contents were on their way, which the other one has");
    tells_ ? task_.get() : task_.wait();
  }

 private:
  std::shared_ptr<c10::Event> event_;
  std::shared_future<void> task_;
  int process_ = 0;  // whose task it is
  bool tells_ = true;
};

}  // namespace snug::memory
