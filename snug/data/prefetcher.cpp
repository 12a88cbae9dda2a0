#include "snug/data/prefetcher.h"

#include <ATen/Context.h>
#include <fmt/format.h>

#include "snug/base/errors.h"
#include "snug/memory/tag.h"

namespace snug::data {

StepQueue::StepQueue(Make make, const PrefetcherOptions& options)
    : make_(std::move(make)), options_(options), next_(options.first_step), begins_(options.first_step) {
  if (options.workers < 0 || options.depth < 1 || options.first_step < 0) {
    throw UsageError(
        fmt::format("prefetching: workers = {} and first_step = {} must be at least 0, and depth = {} at least 1",
                    options.workers, options.first_step, options.depth));
  }
  if (options.workers == 0) return;
  slots_.resize(static_cast<std::size_t>(options.depth));
  for (int i = 0; i < options.workers; ++i) {
    threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
  }
}

StepQueue::~StepQueue() {
  // All at once: each would go on computing while another one is waited for.
  for (std::jthread& thread : threads_) thread.request_stop();
}

void StepQueue::work(const std::stop_token& stop) {
  const memory::TagScope tag(memory::Tag::Staging);
  std::unique_lock lock(mutex_);
  while (room_.wait(lock, stop, [&] { return begins_ - next_ < options_.depth; }) && !stop.stop_requested()) {
    const std::int64_t step = begins_++;
    lock.unlock();
    Slot made;
    made.ready = true;
    try {
      made.value = make_(step);
    } catch (...) {
      made.error = std::current_exception();
    }
    lock.lock();
    slot(step) = std::move(made);
    ready_.notify_one();
  }
}

std::shared_ptr<void> StepQueue::next() {
  if (threads_.empty()) {
    const memory::TagScope tag(memory::Tag::Staging);
    return make_(next_++);
  }
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [&] { return slot(next_).ready; });
  const Slot taken = std::exchange(slot(next_), {});
  ++next_;
  lock.unlock();
  room_.notify_one();
  if (taken.error) std::rethrow_exception(taken.error);
  return taken.value;
}

at::Tensor pinned(const at::Tensor& tensor) { return at::globalContext().hasCUDA() ? tensor.pin_memory() : tensor; }

}  // namespace snug::data
