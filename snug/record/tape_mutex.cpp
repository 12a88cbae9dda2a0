#include "snug/record/tape_mutex.h"

#include <cassert>
#include <utility>

namespace snug::record {

void TapeMutex::lock() {
  const std::thread::id self = std::this_thread::get_id();
  std::unique_lock state(state_);
  if (owner_ != self) {
    changed_.wait(state, [&] { return open_to(self); });
    owner_ = self;
  }
  ++depth_;
}

bool TapeMutex::try_lock() {
  const std::thread::id self = std::this_thread::get_id();
  const std::lock_guard state(state_);
  if (owner_ != self) {
    if (!open_to(self)) return false;
    owner_ = self;
  }
  ++depth_;
  return true;
}

bool TapeMutex::try_lock_to_evict_for(std::chrono::milliseconds patience) {
  const std::thread::id self = std::this_thread::get_id();
  std::unique_lock state(state_);
  if (owner_ != self) {
    if (!changed_.wait_for(state, patience, [&] { return owner_ == std::thread::id(); })) return false;
    owner_ = self;
  }
  ++depth_;
  return true;
}

void TapeMutex::unlock() {
  {
    const std::lock_guard state(state_);
    if (--depth_ > 0) return;
    owner_ = std::thread::id();
  }
  changed_.notify_all();
}

TapeMutex::Lent::Lent(TapeMutex& mutex) : mutex_(mutex) {
  {
    const std::lock_guard state(mutex_.state_);
    assert(mutex_.owner_ == std::this_thread::get_id());
    assert(mutex_.lender_ == std::thread::id() || mutex_.lender_ == mutex_.owner_);
    lender_before_ = std::exchange(mutex_.lender_, mutex_.owner_);
    depth_ = std::exchange(mutex_.depth_, 0);
    mutex_.owner_ = std::thread::id();
  }
  mutex_.changed_.notify_all();
}

TapeMutex::Lent::~Lent() {
  std::unique_lock state(mutex_.state_);
  mutex_.changed_.wait(state, [&] { return mutex_.owner_ == std::thread::id(); });
  mutex_.owner_ = std::exchange(mutex_.lender_, lender_before_);
  mutex_.depth_ = depth_;
}

}  // namespace snug::record
