#include "snug/memory/host_thread.h"

#include <exception>
#include <utility>

namespace snug::memory {

HostThread::~HostThread() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  some_.notify_one();
  if (thread_.joinable()) thread_.join();
}

std::shared_future<void> HostThread::run(std::function<void()> task) {
  std::promise<void> promise;
  std::shared_future<void> done = promise.get_future().share();
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back({std::move(task), std::move(promise)});
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  }
  some_.notify_one();
  return done;
}

void HostThread::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    some_.wait(lock, [this] { return over_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    try {
      task.work();
      task.work = nullptr;
      task.done.set_value();
    } catch (...) {
      task.work = nullptr;
      task.done.set_exception(std::current_exception());
    }
    lock.lock();
  }
}

}  // namespace snug::memory
