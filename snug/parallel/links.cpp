#include "snug/parallel/links.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "snug/base/match.h"

namespace snug::parallel {
namespace {

/// Who the other one of a message is.
std::optional<int> other_of(const Collective& what) {
  return std::visit(
      Match{[](const Send& c) { return std::optional(c.to); }, [](const Receive& c) { return std::optional(c.from); },
            [](const auto&) { return std::optional<int>(); }},
      what);
}

/// How a group lies on machines.
struct Spread {
  int machines = 1;
  int per_machine = 1;  ///< of the group, on that which has fewest
};
Spread spread_of(const std::vector<int>& members, const Links& links) {
  std::map<int, int> on;
  for (const int member : members) ++on[member / links.per_machine];
  Spread spread{.machines = static_cast<int>(on.size()), .per_machine = static_cast<int>(members.size())};
  for (const auto& [machine, count] : on) spread.per_machine = std::min(spread.per_machine, count);
  return spread;
}

/// What each process sends in all, in so many messages behind each other.
struct Traffic {
  double bytes = 0;
  double messages = 0;
};
Traffic traffic_of(const Collective& what, double size) {
  const auto bytes = static_cast<double>(bytes_of(what));
  const double others = size - 1;
  return std::visit(
      Match{
          [&](const AllReduce&) { return Traffic{.bytes = 2 * bytes * others / size, .messages = 2 * others}; },
          [&](const AllGather&) { return Traffic{.bytes = bytes * others, .messages = others}; },
          [&](const ReduceScatter&) { return Traffic{.bytes = bytes * others / size, .messages = others}; },
          [&](const AllToAll&) { return Traffic{.bytes = bytes * others / size, .messages = others}; },
          [&](const Broadcast&) { return Traffic{.bytes = bytes, .messages = std::ceil(std::log2(size))}; },
          [&](const Barrier&) { return Traffic{.bytes = 0, .messages = std::ceil(std::log2(size))}; },
          [&](const auto&) { return Traffic{.bytes = bytes, .messages = 1}; },
      },
      what);
}

}  // namespace

bool leaves_machine(const Collective& what, const std::vector<int>& members, int rank, const Links& links) {
  const auto machine_of = [&](int place) { return members.at(static_cast<std::size_t>(place)) / links.per_machine; };
  if (const std::optional<int> other = other_of(what)) return machine_of(*other) != machine_of(rank);
  return spread_of(members, links).machines > 1;
}

double seconds_of_message(Bytes bytes, int from, int to, const Links& links) {
  const Link& link = from / links.per_machine == to / links.per_machine ? links.within : links.between;
  return link.seconds_per_message + static_cast<double>(bytes) / link.bytes_per_second;
}

double seconds_of(const Collective& what, const std::vector<int>& members, int rank, const Links& links) {
  const bool leaves = leaves_machine(what, members, rank, links);
  const Link& link = leaves ? links.between : links.within;
  if (const std::optional<int> other = other_of(what)) {
    const auto in_world = [&](int place) { return members.at(static_cast<std::size_t>(place)); };
    return seconds_of_message(bytes_of(what), in_world(rank), in_world(*other), links);
  }
  if (members.size() < 2) return 0;
  const Traffic traffic = traffic_of(what, static_cast<double>(members.size()));
  const double within = traffic.bytes / links.within.bytes_per_second;
  if (!leaves) return traffic.messages * link.seconds_per_message + within;
  const Spread spread = spread_of(members, links);
  double across = traffic.bytes / links.between.bytes_per_second / spread.per_machine;
  if (std::holds_alternative<AllToAll>(what)) {
    // Each sends its own to each of the others, wherever that is.
    const double elsewhere = 1 - (spread.per_machine - 1) / std::max(static_cast<double>(members.size()) - 1, 1.0);
    across = traffic.bytes * elsewhere / links.between.bytes_per_second;
  }
  // Rings pass a machine's edge once; the rest of the messages stay inside.
  const double messages_across = std::holds_alternative<AllToAll>(what)
                                     ? traffic.messages
                                     : traffic.messages * spread.machines / static_cast<double>(members.size());
  return messages_across * links.between.seconds_per_message +
         (traffic.messages - messages_across) * links.within.seconds_per_message + std::max(within, across);
}

}  // namespace snug::parallel
