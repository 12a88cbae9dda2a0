#include "snug/data/megatron_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <span>
#include <string>

#include "snug/base/errors.h"
#include "tests/base/fault.h"
#include "tests/data/token_files.h"

namespace snug::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint64_t kBin = 12;  // bytes

TokenLayout parse(const std::string& bytes, std::uint64_t bin = kBin) {
  return parse_megatron_index(as_bytes(bytes), bin, "a.idx");
}

std::string index_fault(const MegatronFields& fields, std::uint64_t bin = kBin) {
  return snug::testing::fault([&] { parse(fields.bytes(), bin); });
}

TEST(MegatronIndex, ReadsSequencesAndDocuments) {
  const TokenLayout layout = parse(MegatronFields{}.bytes());
  EXPECT_EQ(layout.type, TokenType::U16);
  EXPECT_EQ(layout.size, 6);
  EXPECT_THAT(layout.documents, ElementsAre(0, 5));
  ASSERT_EQ(layout.runs.size(), 1U) << "sequences that lie one after the other are one run";
  EXPECT_EQ(layout.runs[0].begin, 0U);
}

TEST(MegatronIndex, KnowsTheIntegersAndNoFloats) {
  const std::vector<std::pair<std::uint8_t, TokenType>> types{{1, TokenType::U8},  {2, TokenType::I8},
                                                              {3, TokenType::I16}, {4, TokenType::I32},
                                                              {5, TokenType::I64}, {8, TokenType::U16}};
  for (const auto& [code, type] : types) {
    EXPECT_EQ(parse(MegatronFields{code, {1}, {0}, {0, 1}}.bytes()).type, type);
  }
  EXPECT_THAT(index_fault({6}), HasSubstr("element type 6 at byte 17 is a floating-point one"));
  EXPECT_THAT(index_fault({7}), HasSubstr("floating-point"));
  EXPECT_THAT(index_fault({0}), HasSubstr("element type 0 at byte 17 is none of 1 to 8"));
  EXPECT_THAT(index_fault({9}), HasSubstr("none of 1 to 8"));
}

TEST(MegatronIndex, KeepsTheOrderOfSequencesThatLieElsewhere) {
  const TokenLayout layout = parse(MegatronFields{8, {2, 1, 0, 2}, {8, 0, 5, 2}, {0, 1, 4}}.bytes());
  EXPECT_EQ(layout.size, 5);
  EXPECT_THAT(layout.documents, ElementsAre(0, 2));
  ASSERT_EQ(layout.runs.size(), 2U);
  EXPECT_EQ(layout.runs[0].begin, 8U);
  EXPECT_EQ(layout.runs[1].first, 2);
  EXPECT_EQ(layout.runs[1].begin, 0U) << "and the one behind it goes on from there";
}

TEST(MegatronIndex, DocumentsMayBeEmptyAndLackTheirEnd) {
  EXPECT_THAT(parse(MegatronFields{8, {3, 3}, {0, 6}, {0, 1, 1, 2}}.bytes()).documents, ElementsAre(0, 3, 3));
  EXPECT_THAT(parse(MegatronFields{8, {3, 3}, {0, 6}, {0, 1}}.bytes()).documents, ElementsAre(0, 3));
  EXPECT_THAT(parse(MegatronFields{8, {3, 3}, {0, 6}, {0, 2, 2}}.bytes()).documents, ElementsAre(0, 6));
  EXPECT_THAT(parse(MegatronFields{8, {3}, {0}, {}}.bytes()).documents, ElementsAre(0));
  EXPECT_EQ(parse(MegatronFields{8, {}, {}, {0}}.bytes()).size, 0);
}

TEST(MegatronIndex, LeadsNowhereOutOfTheBin) {
  constexpr auto kFar = std::numeric_limits<std::int64_t>::max();
  constexpr auto kLong = std::numeric_limits<std::int32_t>::max();
  EXPECT_THAT(index_fault({}, 11),
              HasSubstr("sequence 2 has 1 tokens of 2 bytes from byte 10 on, which are not inside the "
                        "11 bytes of the .bin"));
  EXPECT_EQ(index_fault({8, {1}, {10}, {0, 1}}), "none");
  for (const std::int64_t pointer : {std::int64_t{11}, std::int64_t{13}, std::int64_t{-1}, kFar, -kFar}) {
    EXPECT_THAT(index_fault({8, {1}, {pointer}, {0, 1}}), HasSubstr("sequence 0")) << pointer;
  }
  EXPECT_THAT(index_fault({8, {-1}, {0}, {0, 1}}), HasSubstr("sequence 0 has -1"));
  EXPECT_THAT(index_fault({5, {kLong}, {0}, {0, 1}}), HasSubstr("sequence 0"));
}

TEST(MegatronIndex, DocumentsRise) {
  EXPECT_THAT(index_fault({8, {3, 3}, {0, 6}, {1, 2}}), HasSubstr("document 0 begins with sequence 1"));
  EXPECT_THAT(index_fault({8, {3, 3}, {0, 6}, {0, 3}}), HasSubstr("document 1 begins with sequence 3"));
  EXPECT_THAT(index_fault({8, {3, 3}, {0, 6}, {0, 2, 1}}), HasSubstr("document 2 begins with sequence 1"));
  EXPECT_THAT(index_fault({8, {3, 3}, {0, 6}, {0, -1}}), HasSubstr("document 1 begins with sequence -1"));
}

TEST(MegatronIndex, CountsAreCheckedBeforeTheyAreUsed) {
  const std::string whole = MegatronFields{}.bytes();
  const auto with = [&](std::size_t at, std::uint64_t value) -> std::string {
    std::string bytes = whole;
    std::memcpy(bytes.data() + at, &value, sizeof(value));
    try {
      parse(bytes);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "none";
  };
  for (const std::uint64_t count : {4ULL, 1ULL << 60U, 1ULL << 61U, ~0ULL, 0x5555555555555556ULL}) {
    EXPECT_THAT(with(18, count), HasSubstr("at byte")) << count;
    EXPECT_THAT(with(26, count), HasSubstr("documents at byte 26")) << count;
  }
  EXPECT_THAT(with(9, 2), HasSubstr("version 2 at byte 9 is not 1"));
  EXPECT_THAT(with(0, 0), HasSubstr("does not begin with MMIDIDX"));
}

TEST(MegatronIndex, DamageIsAnErrorOrAnotherIndexAndNoCrash) {
  int refused = 0;
  for_each_damage(MegatronFields{}.bytes(), [&](const std::string& bytes) {
    try {
      const TokenLayout layout = parse(bytes);
      EXPECT_LE(layout.size, 12);
    } catch (const UsageError&) {
      ++refused;
    }
  });
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace snug::data
