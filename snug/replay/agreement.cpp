#include "snug/replay/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>
#include <string_view>

namespace snug::replay {
namespace {

std::vector<Vote> all_votes(Agreement& group, Vote mine) {
  std::string why = "an unknown exception";
  try {
    return group.votes(mine);
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    why = text.substr(0, text.find('\n'));
  } catch (...) {
  }
  throw GroupEnded(fmt::format(
      "agreement: a process of the group has ended or cannot be reached, and if it failed it says why itself; "
      "begin again in all of them ({})",
      why));
}

}  // namespace

Vote ask(Agreement& group, Vote mine) {
  const std::vector<Vote> votes = all_votes(group, mine);
  if (const auto failed = std::ranges::find(votes, Vote::Failed); failed != votes.end()) {
    throw GroupEnded(
        fmt::format("agreement: process {} of the group's {} (from 0 on) has failed, and its own error says why; mend "
                    "that, and begin again in all of them",
                    failed - votes.begin(), votes.size()));
  }
  return std::ranges::count(votes, Vote::No) == 0 ? Vote::Yes : Vote::No;
}

void tell_failure(Agreement& group) noexcept {
  try {
    throw;
  } catch (const GroupEnded&) {
    return;
  } catch (...) {
  }
  group.end_collectives();
  try {
    (void)group.votes(Vote::Failed);
  } catch (...) {  // what was caught is reported
  }
}

}  // namespace snug::replay
