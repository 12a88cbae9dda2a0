#include "snug/base/shortened.h"

#include <gtest/gtest.h>

namespace snug {
namespace {

TEST(Shortened, CutsBehindAWholeCharacter) {
  EXPECT_EQ(shortened("abc", 3), "abc");
  EXPECT_EQ(shortened("abcd", 3), "abc...");
  EXPECT_EQ(shortened("a\xC3\xA4z", 3), "a\xC3\xA4...");
  EXPECT_EQ(shortened("a\xC3\xA4z", 2), "a...");
  EXPECT_EQ(shortened("\xF0\x9F\x98\x80\xF0\x9F\x98\x80", 7), "\xF0\x9F\x98\x80...");
  EXPECT_EQ(shortened("\xBF\xBF\xBF", 2), "...") << "nothing but what goes on";
}

}  // namespace
}  // namespace snug
