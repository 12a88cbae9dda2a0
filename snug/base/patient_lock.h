#pragma once

#include <mutex>

namespace snug {

/// What a thread gives up while it waits for a mutex that may be held by somebody who needs it: Python's interpreter
/// lock. `give_up` returns what `take_back` needs, or nullptr when there is nothing to give up. Set once, by a front
/// end.
struct Waiting {
  void* (*give_up)() = nullptr;
  void (*take_back)(void*) = nullptr;
};
void set_waiting(Waiting waiting) noexcept;
const Waiting& waiting() noexcept;

/// Gives that up for as long as it lives: for long work that does without.
class GivenUp {
 public:
  GivenUp() : given_up_(waiting().give_up != nullptr ? waiting().give_up() : nullptr) {}
  ~GivenUp() {
    if (given_up_ != nullptr) waiting().take_back(given_up_);
  }
  GivenUp(const GivenUp&) = delete;
  GivenUp& operator=(const GivenUp&) = delete;

 private:
  void* given_up_;
};

/// Locks a mutex under which code of the front end may run: without holding on to what that code needs.
template <class Mutex>
class PatientLock {
 public:
  explicit PatientLock(Mutex& mutex) : lock_(mutex, std::try_to_lock) {
    if (lock_.owns_lock()) return;
    void* given_up = waiting().give_up != nullptr ? waiting().give_up() : nullptr;
    lock_.lock();
    if (given_up == nullptr) return;
    // Not while holding the mutex: whoever has the one may wait for the other.
    for (;;) {
      lock_.unlock();
      waiting().take_back(given_up);
      if (lock_.try_lock()) return;
      given_up = waiting().give_up();
      lock_.lock();
    }
  }

 private:
  std::unique_lock<Mutex> lock_;
};

}  // namespace snug
