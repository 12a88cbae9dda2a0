#include "snug/base/json_integer.h"

#include <gtest/gtest.h>

namespace snug {
namespace {

template <class T>
T read(const char* text) {
  return json_integer<T>(nlohmann::json::parse(text));
}

TEST(JsonInteger, ReadsWhatFitsItsType) {
  EXPECT_EQ(read<std::int32_t>("-2147483648"), std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(read<std::uint64_t>("18446744073709551615"), std::numeric_limits<std::uint64_t>::max());
}

TEST(JsonInteger, RefusesWhatGetWouldConvert) {
  EXPECT_EQ(nlohmann::json::parse("1.5").get<int>(), 1) << "without a word";
  for (const char* other : {"1.0", "1e30", "-1", "4294967296", "true", "\"1\"", "null", "[1]"}) {
    EXPECT_THROW(read<std::uint32_t>(other), UsageError) << other;
  }
  EXPECT_THROW(read<std::int64_t>("9223372036854775808"), UsageError);
  EXPECT_THROW(read<std::uint64_t>("2.87413e+22"), UsageError);
}

}  // namespace
}  // namespace snug
