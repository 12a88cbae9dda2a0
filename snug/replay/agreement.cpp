#include "snug/replay/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

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

Vote ask(Agreement& group, Vote mine, std::size_t* processes) {
  const std::vector<Vote> votes = all_votes(group, mine);
  if (processes != nullptr) *processes = votes.size();
  if (const auto failed = std::ranges::find(votes, Vote::Failed); failed != votes.end()) {
    throw GroupEnded(
        fmt::format("agreement: process {} of the group's {} (from 0 on) has failed, and its own error says why; mend "
                    "that, and begin again in all of them",
                    failed - votes.begin(), votes.size()));
  }
  return std::ranges::count(votes, Vote::No) == 0 ? Vote::Yes : Vote::No;
}

namespace {

bool is_of_the_group() noexcept {
  try {
    throw;
  } catch (const GroupEnded&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

void tell_failure(Agreement& group) noexcept {
  if (is_of_the_group()) return;
  try {
    (void)group.votes(Vote::Failed);
  } catch (...) {  // what was caught is reported
  }
}

void tell_failure_in_step(Agreement& group) noexcept {
  if (is_of_the_group()) return;
  group.end_collectives();
  tell_failure(group);
}

double as_number(std::uint64_t hash) { return static_cast<double>(hash >> 12U); }

bool all_have(std::span<const double> numbers, Agreement& group) {
  std::vector<double> both(numbers.begin(), numbers.end());
  for (const double number : numbers) both.push_back(-number);
  group.largest(both);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (both[i] != -both[numbers.size() + i]) return false;
  }
  return true;
}

}  // namespace snug::replay
