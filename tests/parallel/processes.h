#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "snug/parallel/world.h"

namespace snug::testing {

/// Whether this process is one of those that a test has started, and not the test's own: what is to be there before
/// them is made by that one alone.
bool is_started_by_test();

/// How a process of a test ended.
struct Ended {
  int exit_code = 0;   ///< of one that ended by itself
  int signal = 0;      ///< that has ended it
  std::string output;  ///< what it wrote
};

/// Runs this test once more in each of `count` processes, as torchrun would start them; there `body` runs in place of
/// what comes behind this call, and the calls before it do nothing. Fails the test, with what they wrote, where one of
/// them fails, or they take more than `seconds`.
void in_processes(int count, const std::function<void(parallel::World&)>& body, double seconds = 60);

/// The same without a judgement, and without having met: for processes that are to fail. `each` runs in the process
/// that has started them, every few milliseconds, with their process ids.
std::vector<Ended> outcomes_of(int count, const std::function<void(const parallel::Launched&)>& body,
                               double seconds = 60, const std::function<void(const std::vector<int>&)>& each = {});

}  // namespace snug::testing
