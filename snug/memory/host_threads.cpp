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
    (void)shared_.release();  // a condition for which threads wait that are not here would wait for them in turn
    return;
  }
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->over = true;
  }
  shared_->some.notify_all();
  for (std::thread& thread : shared_->threads) thread.join();
}

std::shared_future<void> HostThreads::run(std::function<void()> task) {
  if (::getpid() != process_)
    throw Error("session: this process was forked, and its threads are the parent's; make a session in it");
  Shared& shared = *shared_;
  std::promise<void> promise;
  std::shared_future<void> done = promise.get_future().share();
  {
    const std::lock_guard lock(shared.mutex);
    if (shared.threads.size() < count_) {
      try {
        shared.threads.emplace_back([&shared] { work(shared); });
      } catch (const std::system_error& error) {  // those that there are do it
        if (shared.threads.empty())
          throw Error(fmt::format("session: the system has no further thread: {}", error.code().message()));
      }
    }
    shared.tasks.push_back({std::move(task), std::move(promise)});
  }
  shared.some.notify_one();
  return done;
}

double HostThreads::seconds() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->seconds;
}

void HostThreads::work(Shared& shared) {
  std::unique_lock lock(shared.mutex);
  while (true) {
    shared.some.wait(lock, [&] { return shared.over || !shared.tasks.empty(); });
    if (shared.tasks.empty()) return;
    Task task = std::move(shared.tasks.front());
    shared.tasks.pop_front();
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
    shared.seconds += thread_seconds() - began;
    if (failure) {
      task.done.set_exception(failure);
    } else {
      task.done.set_value();
    }
  }
}

}  // namespace snug::memory
