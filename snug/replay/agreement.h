#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "snug/base/errors.h"

namespace snug {

/// What one process has to say about going on as it is.
enum class Vote : std::uint8_t {
  No,
  Yes,
  Failed  ///< it has thrown something that the others know nothing of, and votes on this no more
};

/// How processes that train one model together, and wait for each other in collectives, decide what changes what runs
/// in each of them: to record a step again, to plan it again, to refuse it, to give up. Each of them asks for every
/// decision, in the same order. Called by the thread that records or runs a step, perhaps while a first operator waits;
/// operators that it runs are recorded by nobody.
class Agreement {
 public:
  Agreement() = default;
  virtual ~Agreement() = default;
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  /// What every process of the group says, `mine` among them, in an order that is the same in all: an all-gather of a
  /// byte. Waits for all of them. What it throws ends what this process was doing; it is not asked again for that.
  virtual std::vector<Vote> votes(Vote mine) = 0;
};

/// Of a process that trains alone: its own word.
const std::shared_ptr<Agreement>& alone();

namespace replay {

/// Ends what the processes of a group do together, in each of them that has no error of its own to throw.
class GroupEnded : public Error {
 public:
  using Error::Error;
};

/// Asks the group: Yes when every process says so, else No. Throws GroupEnded where one has failed, naming the first by
/// its place among the votes, and where the vote itself fails.
Vote ask(Agreement& group, Vote mine);

/// In a catch block: tells the group, which waits for this process's next vote, that there is none, as what was caught
/// is this process's own affair. A GroupEnded is not.
void tell_failure(Agreement& group) noexcept;

/// Runs what a process does by itself between two votes. What that throws is told to the group.
template <class Run>
decltype(auto) or_tell(Agreement& group, const Run& run) {
  try {
    return run();
  } catch (...) {
    tell_failure(group);
    throw;
  }
}

}  // namespace replay
}  // namespace snug
