#include "snug/parallel/world.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "snug/base/errors.h"
#include "snug/parallel/group_agreement.h"

namespace snug::parallel {

std::shared_ptr<Agreement> World::agreement() { return agreement_of(all_); }

std::vector<int> World::everybody() const {
  std::vector<int> ranks(static_cast<std::size_t>(launched_.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::shared_ptr<ProcessGroup> World::group(const std::vector<int>& ranks) {
  const auto here = std::ranges::find(ranks, launched_.rank);
  const bool exist = std::ranges::all_of(ranks, [&](int rank) { return rank >= 0 && rank < launched_.size; });
  if (!exist || here == ranks.end() || std::set<int>(ranks.begin(), ranks.end()).size() != ranks.size()) {
    throw UsageError(
        fmt::format("parallel: a group of the ranks {} in the process of rank {} of {}: each must be there, once, and "
                    "this one among them",
                    fmt::join(ranks, ", "), launched_.rank, launched_.size));
  }
  if (ranks.size() == 1) return group_of_one(ranks.front());
  return make(ranks, static_cast<int>(here - ranks.begin()));
}

}  // namespace snug::parallel
