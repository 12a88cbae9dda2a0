#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace snug::memory {

/// Threads of the host that do one task after the other, in the order in which they get them, beside what their owner
/// does. They begin with the first. Any thread may give them tasks.
class HostThreads {
 public:
  explicit HostThreads(std::size_t count);
  HostThreads(const HostThreads&) = delete;
  HostThreads& operator=(const HostThreads&) = delete;
  /// Once all are done. In a process that was forked meanwhile, at once: the threads are the other's.
  ~HostThreads();

  /// What the task throws comes out of the future. It is gone, with all that it holds, when the future is ready. Throws
  /// Error, and the task is not done, when the system has no thread for it, and in a process that was forked meanwhile.
  std::shared_future<void> run(std::function<void()> task);
  /// That a processor has worked for tasks that are done.
  [[nodiscard]] double seconds() const;

 private:
  struct Task {
    std::function<void()> work;
    std::promise<void> done;
  };
  /// Of all of them, synchronized by its mutex.
  struct Shared {
    std::mutex mutex;
    std::condition_variable some;
    std::deque<Task> tasks;
    bool over = false;
    std::vector<std::thread> threads;
    double seconds = 0;
  };
  static void work(Shared& shared);

  const std::size_t count_;
  const int process_;  // which has the threads
  std::unique_ptr<Shared> shared_ = std::make_unique<Shared>();
};

}  // namespace snug::memory
