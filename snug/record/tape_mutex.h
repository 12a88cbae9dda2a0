#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace snug::record {

/// Guards a tape; recursive. While a kernel runs under it, in a replay for one, it is lent to evictions: a kernel may
/// allocate on threads of its own, and those must be able to make room too, while whoever holds the mutex waits for
/// them. Evictions do not lend it on. For std::lock_guard and its kin.
class TapeMutex {
 public:
  void lock();
  bool try_lock();
  void unlock();

  /// As lock(), and also while the mutex is lent. False when it was neither free nor lent in all that time: whoever
  /// holds it may be waiting for this thread.
  bool try_lock_to_evict_for(std::chrono::milliseconds patience);

  /// Lends the mutex, which the calling thread holds, for as long as this lives: all that is under it must be
  /// as an eviction may find it. Nests.
  class Lent {
   public:
    explicit Lent(TapeMutex& mutex);
    ~Lent();
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;

   private:
    TapeMutex& mutex_;
    std::thread::id lender_before_;
    int depth_;
  };

 private:
  [[nodiscard]] bool open_to(std::thread::id thread) const {
    return owner_ == std::thread::id() && (lender_ == std::thread::id() || lender_ == thread);
  }

  std::mutex state_;
  std::condition_variable changed_;
  std::thread::id owner_;
  int depth_ = 0;
  std::thread::id lender_;
};

}  // namespace snug::record
