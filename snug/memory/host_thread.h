#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

namespace snug::memory {

/// A thread of the host that does one task after the other, beside what its owner does. It begins with the first.
/// Any thread may give it tasks.
class HostThread {
 public:
  HostThread() = default;
  HostThread(const HostThread&) = delete;
  HostThread& operator=(const HostThread&) = delete;
  /// Once all are done.
  ~HostThread();

  /// What the task throws comes out of the future. It is gone, with all that it holds, when the future is ready.
  std::shared_future<void> run(std::function<void()> task);

 private:
  struct Task {
    std::function<void()> work;
    std::promise<void> done;
  };
  void work();

  std::mutex mutex_;  // of what follows
  std::condition_variable some_;
  std::deque<Task> tasks_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace snug::memory
