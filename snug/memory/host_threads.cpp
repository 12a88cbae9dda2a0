#include "snug/memory/host_threads.h"

#include <fmt/format.h>
#include <unistd.h>

#include <exception>
#include <system_error>
#include <utility>

#include "snug/base/clock.h"
#include "snug/base/errors.h"

namespace snug::memory {

HostThreads::HostThreads(std::size_t count) : count_(count), process_(::getpid()) {}

HostThreads::~HostThreads() {
  if (::getpid() != process_) {
    for (std::thread& thread : threads_) thread.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  some_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::shared_future<void> HostThreads::run(std::function<void()> task) {
  if (::getpid() != process_)
    throw Error("offload: this process was forked, and has no threads that copy; make a session in it");
  std::promise<void> promise;
  std::shared_future<void> done = promise.get_future().share();
  {
    const std::lock_guard lock(mutex_);
    if (threads_.size() < count_) {
      try {
        threads_.emplace_back([this] { work(); });
      } catch (const std::system_error& error) {  // those that there are do it
        if (threads_.empty())
          throw Error(fmt::format("offload: the system has no thread for copies: {}", error.code().message()));
      }
    }
    tasks_.push_back({std::move(task), std::move(promise)});
  }
  some_.notify_one();
  return done;
}

double HostThreads::seconds() const {
  const std::lock_guard lock(mutex_);
  return seconds_;
}

void HostThreads::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    some_.wait(lock, [this] { return over_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    const double began = thread_seconds();
    std::exception_ptr failure;
    try {
      task.work();
    } catch (...) {
      failure = std::current_exception();
    }
    task.work = nullptr;
    lock.lock();
    seconds_ += thread_seconds() - began;
    if (failure) {
      task.done.set_exception(failure);
    } else {
      task.done.set_value();
    }
  }
}

}  // namespace snug::memory
