#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace snug::data {

struct PrefetcherOptions {
  int workers = 1;              ///< threads; 0: next() computes the batch itself
  std::int64_t depth = 2;       ///< batches at most that wait or are being computed, besides the one handed out
  std::int64_t first_step = 0;  ///< to resume, the step to go on with
  bool pinned = false;          ///< in page-locked memory, from which copies to a GPU overlap; nothing without one
};

/// Values of step n, n + 1, ..., computed ahead by threads and handed out in order. What Prefetcher is made of.
class StepQueue {
 public:
  using Make = std::function<std::shared_ptr<void>(std::int64_t step)>;
  /// Throws UsageError when an option is out of range.
  StepQueue(Make make, const PrefetcherOptions& options);
  ~StepQueue();
  StepQueue(const StepQueue&) = delete;
  StepQueue& operator=(const StepQueue&) = delete;

  std::shared_ptr<void> next();
  [[nodiscard]] std::int64_t step() const noexcept { return next_; }

 private:
  struct Slot {
    std::shared_ptr<void> value;
    std::exception_ptr error;
    bool ready = false;
  };
  void work(const std::stop_token& stop);
  Slot& slot(std::int64_t step) { return slots_[static_cast<std::size_t>(step % options_.depth)]; }

  Make make_;
  PrefetcherOptions options_;
  std::mutex mutex_;  // of all below but threads_
  std::condition_variable_any room_, ready_;
  std::vector<Slot> slots_;
  std::int64_t next_;    // to hand out
  std::int64_t begins_;  // the next to compute
  std::vector<std::jthread> threads_;
};

/// Page-locked where the process has a GPU, else the tensor itself.
at::Tensor pinned(const at::Tensor& tensor);

inline std::vector<at::Tensor*> tensors_of(at::Tensor& tensor) { return {&tensor}; }

/// Batches that threads compute ahead, handed out in the order of their steps whatever the number of threads, which
/// changes no batch: each is a pure function of its step, as those of TextDataset, PackedDataset and ImageFolder are.
/// Memory: `depth` batches and the one handed out, tagged as staging.
///
/// `Value` is a batch: any type that moves. To pin it, there is a `std::vector<at::Tensor*> tensors_of(Value&)`.
/// next() is called from one thread at a time. The destructor waits for batches that are being computed.
template <class Value>
class Prefetcher {
 public:
  /// `make`: the batch of a step; called from several threads at once, and to outlive the prefetcher with all that it
  /// refers to. Throws UsageError when an option is out of range.
  explicit Prefetcher(std::function<Value(std::int64_t step)> make, const PrefetcherOptions& options = {})
      : queue_(
            [make = std::move(make), pin = options.pinned](std::int64_t step) {
              auto value = std::make_shared<Value>(make(step));
              if constexpr (requires { tensors_of(*value); }) {
                if (pin) {
                  for (at::Tensor* tensor : tensors_of(*value)) *tensor = pinned(*tensor);
                }
              }
              return value;
            },
            options) {}

  /// The batch of step(), which then is one higher. What `make` threw for that step is thrown here, and the next call
  /// goes on behind it.
  Value next() { return std::move(*std::static_pointer_cast<Value>(queue_.next())); }

  /// The step of the batch that next() gives.
  [[nodiscard]] std::int64_t step() const noexcept { return queue_.step(); }

 private:
  StepQueue queue_;
};

}  // namespace snug::data
