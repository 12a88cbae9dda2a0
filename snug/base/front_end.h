#pragma once

#include <exception>

namespace snug {

/// What snug asks of a language above it that has exceptions, and a lock around its interpreter, of its own, as Python
/// has. What stands here is for C++, which has neither: nothing is translated, and nothing given up.
/// Any thread, also one of LibTorch's, may call any of these at any time, with locks of snug held: they must not call
/// back into snug, and may wait for nothing but the interpreter's lock.
struct FrontEnd {
  /// Throws what LibTorch hands through to the language in place of `error`, which snug is about to throw into
  /// LibTorch. Returns where there is nothing to put in its place.
  void (*translate)(const std::exception_ptr& error) = [](const std::exception_ptr&) {};
  /// The exception of snug's that `error`, which came out of LibTorch, was made from by translate(); nullptr for
  /// others.
  std::exception_ptr (*untranslate)(const std::exception_ptr& error) = [](const std::exception_ptr&) {
    return std::exception_ptr();
  };
  /// Gives up the interpreter's lock, if the calling thread has it: before a wait for somebody who may need it. What
  /// take_back() needs, nullptr where there was nothing to give up. Must not throw.
  void* (*give_up)() = []() -> void* { return nullptr; };
  /// Waits for that lock again, on the same thread. Called once for each give_up() that gave something up. Must not
  /// throw.
  void (*take_back)(void* given_up) = [](void*) {};
};

/// Called once, by the front end when it is loaded, before any other thread calls snug. `front` must live until the
/// process ends, as a constant does: threads may ask it to the very last.
void set_front_end(const FrontEnd& front) noexcept;
void set_front_end(const FrontEnd&& front) = delete;
/// The one that was set; before that, C++'s.
const FrontEnd& front_end() noexcept;

}  // namespace snug
