#include "snug/memory/timeline.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace snug::memory {
namespace {

TEST(Timeline, KeepsEveryOtherOneWhenThereAreTooMany) {
  Timeline timeline(4);
  for (int i = 0; i < 9; ++i) timeline.add(i, 10 * i);
  EXPECT_EQ(timeline.points(), (std::vector<std::pair<double, Bytes>>{{0, 0}, {4, 40}, {8, 80}}));
  for (int i = 9; i < 1000; ++i) timeline.add(i, 10 * i);
  ASSERT_GE(timeline.points().size(), 2);
  EXPECT_LE(timeline.points().size(), 4);
  const double apart = timeline.points()[1].first;
  for (std::size_t i = 0; i < timeline.points().size(); ++i)
    EXPECT_EQ(timeline.points()[i].first, apart * static_cast<double>(i));
}

}  // namespace
}  // namespace snug::memory
