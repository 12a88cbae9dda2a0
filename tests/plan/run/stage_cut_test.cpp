#include "snug/plan/run/stage_cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "snug/base/errors.h"

namespace snug::plan {
namespace {

using ::testing::ElementsAre;

double longest_of(const std::vector<double>& seconds, const std::vector<int>& cut, double before, double behind) {
  double longest = 0;
  std::size_t next = 0;
  for (std::size_t stage = 0; stage < cut.size(); ++stage) {
    double all = (stage == 0 ? before : 0) + (stage + 1 == cut.size() ? behind : 0);
    for (int i = 0; i < cut[stage]; ++i) all += seconds[next++];
    longest = std::max(longest, all);
  }
  return longest;
}

TEST(StageCut, IsEvenWhereAllBlocksAreAlike) {
  EXPECT_THAT(cut_into_stages(std::vector<double>(8, 1.0), 4, 0, 0), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(cut_into_stages(std::vector<double>(7, 1.0), 4, 0, 0), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(cut_into_stages(std::vector<double>(3, 1.0), 3, 0, 0), ElementsAre(1, 1, 1));
  EXPECT_THAT(cut_into_stages(std::vector<double>(5, 1.0), 1, 1, 1), ElementsAre(5));
}

TEST(StageCut, LeavesFewerBlocksToWhoDoesMore) {
  EXPECT_THAT(cut_into_stages(std::vector<double>(8, 1.0), 2, 0, 2), ElementsAre(5, 3));
  EXPECT_THAT(cut_into_stages(std::vector<double>(8, 1.0), 2, 4, 0), ElementsAre(2, 6));
}

/// Beside all cuts that there are.
TEST(StageCut, HasTheShortestLongestStage) {
  std::mt19937 random(5);  // NOLINT: the same each time
  for (int trial = 0; trial < 300; ++trial) {
    const int blocks = 1 + static_cast<int>(random() % 8), stages = 1 + static_cast<int>(random() % blocks);
    std::vector<double> seconds;
    for (int i = 0; i < blocks; ++i) seconds.push_back(1.0 + static_cast<double>(random() % 5));
    const double before = static_cast<double>(random() % 4), behind = static_cast<double>(random() % 9);
    double least = 1e9;
    std::vector<int> cut;
    const std::function<void(int)> all = [&](int left) {
      const int more = stages - static_cast<int>(cut.size());
      if (more == 1) {
        cut.push_back(left);
        least = std::min(least, longest_of(seconds, cut, before, behind));
        cut.pop_back();
        return;
      }
      for (int count = 1; count <= left - more + 1; ++count) {
        cut.push_back(count);
        all(left - count);
        cut.pop_back();
      }
    };
    all(blocks);
    EXPECT_DOUBLE_EQ(longest_of(seconds, cut_into_stages(seconds, stages, before, behind), before, behind), least);
  }
}

TEST(StageCut, RefusesStagesWithoutABlock) {
  EXPECT_THROW((void)cut_into_stages({1, 1}, 3, 0, 0), UsageError);
  EXPECT_THROW((void)cut_into_stages({1, 1}, 0, 0, 0), UsageError);
}

}  // namespace
}  // namespace snug::plan
