#pragma once

#include <future>
#include <utility>

namespace snug::ops {

/// What test(arguments...) finds in a thread of its own: with none of the caller's modes, recorders and random states.
template <class Test, class... Arguments>
auto found_apart(Test&& test, Arguments&&... arguments) {
  return std::async(std::launch::async, std::forward<Test>(test), std::forward<Arguments>(arguments)...).get();
}

}  // namespace snug::ops
