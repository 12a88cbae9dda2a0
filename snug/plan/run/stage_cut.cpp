#include "snug/plan/run/stage_cut.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "snug/base/errors.h"

namespace snug::plan {

std::vector<int> cut_into_stages(const std::vector<double>& block_seconds, int stages, double before, double behind) {
  const int blocks = static_cast<int>(block_seconds.size());
  if (stages < 1 || stages > blocks) {
    throw UsageError(fmt::format("pipeline: {} stages of {} blocks; each has one at least, so choose {}", stages,
                                 blocks, stages < 1 ? "one or more" : "fewer stages"));
  }
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  std::vector<double> sums(at(blocks) + 1, 0.0);
  for (int i = 0; i < blocks; ++i) sums[at(i) + 1] = sums[at(i)] + block_seconds[at(i)];
  const auto seconds = [&](int stage, int first, int end) {
    return sums[at(end)] - sums[at(first)] + (stage == 0 ? before : 0) + (stage == stages - 1 ? behind : 0);
  };
  // longest[s][i]: of the stages from s on, which have the blocks from i on, cut at best.
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector longest(at(stages) + 1, std::vector<double>(at(blocks) + 1, kNever));
  longest[at(stages)][at(blocks)] = 0;
  for (int stage = stages - 1; stage >= 0; --stage) {
    for (int first = 0; first < blocks; ++first) {
      for (int end = first + 1; end <= blocks; ++end) {
        const double most = std::max(seconds(stage, first, end), longest[at(stage) + 1][at(end)]);
        longest[at(stage)][at(first)] = std::min(longest[at(stage)][at(first)], most);
      }
    }
  }
  const double least = longest[0][0] * (1 + 1e-12);
  std::vector<int> cut;
  for (int stage = 0, first = 0; stage < stages; ++stage) {
    // An even share of what is left, or as near to it as the longest allows.
    const int even = (blocks - first + stages - stage - 1) / (stages - stage);
    int chosen = 0;
    for (int count = 1; first + count <= blocks; ++count) {
      const bool fits =
          std::max(seconds(stage, first, first + count), longest[at(stage) + 1][at(first + count)]) <= least;
      if (fits && (chosen == 0 || std::abs(count - even) < std::abs(chosen - even))) chosen = count;
    }
    cut.push_back(chosen);
    first += chosen;
  }
  return cut;
}

}  // namespace snug::plan
