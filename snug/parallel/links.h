#pragma once

#include <vector>

#include "snug/base/bytes.h"
#include "snug/parallel/collective.h"

namespace snug::parallel {

/// A way between two processes: what one of them sends in a second, and how long a message is under way besides.
struct Link {
  double bytes_per_second = 0;
  double seconds_per_message = 0;
  friend bool operator==(const Link&, const Link&) = default;
};

/// Between processes of one machine, and of different ones; both ways at once, each process at that rate by itself.
/// Processes of one machine have ranks that follow each other.
struct Links {
  Link within, between;
  int per_machine = 1;
  friend bool operator==(const Links&, const Links&) = default;
};

/// How long a collective takes in a group of processes with these ranks, once all have begun it: of rings, and of
/// messages in pairs, as bandwidth-optimal collectives are (Thakur et al. 2005, doi:10.1177/1094342005051521). Between
/// machines a group goes by as many ways as it has members on each. Of a message it is that to, or from, its other
/// process.
[[nodiscard]] double seconds_of(const Collective& what, const std::vector<int>& members, int rank, const Links& links);

/// The same of a message between two processes, by their ranks in the world.
[[nodiscard]] double seconds_of_message(Bytes bytes, int from, int to, const Links& links);

/// Whether the group, or the message, leaves the machine of this process.
[[nodiscard]] bool leaves_machine(const Collective& what, const std::vector<int>& members, int rank,
                                  const Links& links);

}  // namespace snug::parallel
