#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "snug/base/agreement.h"
#include "snug/base/errors.h"

namespace snug::replay {

/// Ends what the processes of a group do together, in each of them that has no error of its own to throw.
class GroupEnded : public Error {
 public:
  using Error::Error;
};

/// Asks the group: Yes when every process says so, else No. Throws GroupEnded where one has failed, naming the first by
/// its place among the votes, and where the vote itself fails. `processes`: set to how many there are.
Vote ask(Agreement& group, Vote mine, std::size_t* processes = nullptr);

/// In a catch block: tells the group, which waits for this process's next vote, that there is none, as what was caught
/// is this process's own affair. A GroupEnded is not.
void tell_failure(Agreement& group) noexcept;
/// The same where the others run a step that this process has left, or does not begin: nor do they wait for it in
/// collectives, all of which are at their end (Agreement::end_collectives()).
void tell_failure_in_step(Agreement& group) noexcept;

/// A hash in so many bits that a double has them, for Agreement::largest().
double as_number(std::uint64_t hash);
/// Whether all processes of the group have the same numbers.
bool all_have(std::span<const double> numbers, Agreement& group);

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
