#include "snug/base/comma_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace snug {
namespace {

using ::testing::ElementsAre;

TEST(CommaList, HasItsPartsWithoutBlanksAround) {
  EXPECT_THAT(split_at_commas("a, b\t,c d"), ElementsAre("a", "b", "c d"));
  EXPECT_THAT(split_at_commas("a,,"), ElementsAre("a", "", ""));
  EXPECT_THAT(split_at_commas(" "), ElementsAre(""));
}

TEST(CommaList, IsNotCutInParentheses) {
  EXPECT_THAT(split_at_commas("none,selective(aten::mm, aten::bmm),optimal"),
              ElementsAre("none", "selective(aten::mm, aten::bmm)", "optimal"));
}

TEST(Trimmed, TakesNothingFromTheMiddle) {
  EXPECT_EQ(trimmed(" \r\n a b\t"), "a b");
  EXPECT_EQ(trimmed(" \t"), "");
}

}  // namespace
}  // namespace snug
