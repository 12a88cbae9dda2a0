#pragma once

#include <mutex>

#include "snug/base/front_end.h"

namespace snug {

/// Gives the front end's lock up for as long as it lives: for long work that does without.
class GivenUp {
 public:
  GivenUp() : given_up_(front_end().give_up()) {}
  ~GivenUp() {
    if (given_up_ != nullptr) front_end().take_back(given_up_);
  }
  GivenUp(const GivenUp&) = delete;
  GivenUp& operator=(const GivenUp&) = delete;

 private:
  void* given_up_;
};

/// Locks a mutex under which code of the front end may run: without holding on to the lock that this code needs.
template <class Mutex>
class PatientLock {
 public:
  explicit PatientLock(Mutex& mutex) : lock_(mutex, std::try_to_lock) {
    if (lock_.owns_lock()) return;
    void* given_up = front_end().give_up();
    lock_.lock();
    if (given_up == nullptr) return;
    // Not while holding the mutex: whoever has the one may wait for the other.
    for (;;) {
      lock_.unlock();
      front_end().take_back(given_up);
      if (lock_.try_lock()) return;
      given_up = front_end().give_up();
      lock_.lock();
    }
  }

 private:
  std::unique_lock<Mutex> lock_;
};

}  // namespace snug
