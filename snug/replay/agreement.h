#pragma once

#include "snug/base/agreement.h"
#include "snug/base/errors.h"

namespace snug::replay {

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

}  // namespace snug::replay
