#include "snug/base/listing.h"

#include <gtest/gtest.h>

namespace snug {
namespace {

TEST(Listed, NamesAllOfEightAndCountsWhatFollows) {
  std::vector<std::string> items;
  EXPECT_EQ(listed(items), "");
  for (int i = 1; i <= 8; ++i) items.push_back(std::to_string(i));
  EXPECT_EQ(listed(items), "1, 2, 3, 4, 5, 6, 7, 8");
  items.insert(items.end(), {"9", "10"});
  EXPECT_EQ(listed(items, "; "), "1; 2; 3; 4; 5; 6; 7; 8 and 2 more");
}

}  // namespace
}  // namespace snug
