#include "snug/base/bytes.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/base/fault.h"

namespace snug {
namespace {

std::string fault_of_bytes(const std::string& text) {
  return testing::fault([&] { parse_bytes(text); });
}

TEST(ParseBytes, ReadsBinaryUnitsInAnyCaseAndSpacing) {
  EXPECT_EQ(parse_bytes("8GiB"), 8_GiB);
  EXPECT_EQ(parse_bytes(" 400 mib "), 400_MiB);
  EXPECT_EQ(parse_bytes("512k"), 512_KiB);
  EXPECT_EQ(parse_bytes("0.5M"), 512_KiB);
  EXPECT_EQ(parse_bytes("1t"), 1024 * 1_GiB);
  EXPECT_EQ(parse_bytes("1e3GiB"), 1000 * 1_GiB);
}

TEST(ParseBytes, ReadsDecimalUnitsAndPlainBytes) {
  EXPECT_EQ(parse_bytes("2GB"), 2000000000);
  EXPECT_EQ(parse_bytes("1.5e9"), 1500000000);
  EXPECT_EQ(parse_bytes("12 B"), 12);
  EXPECT_EQ(parse_bytes("0"), 0);
}

TEST(ParseBytes, NamesTextThatIsNoSize) {
  for (const std::string text : {"", "MiB", "-1", "many", "0x10", "nan", "inf"}) {
    EXPECT_NE(fault_of_bytes(text).find("bytes: \"" + text + "\" is not a size"), std::string::npos)
        << fault_of_bytes(text);
  }
}

TEST(ParseBytes, NamesAnUnknownUnit) {
  EXPECT_NE(fault_of_bytes("5XB").find("the unknown unit \"XB\""), std::string::npos) << "as it was written";
  EXPECT_NE(fault_of_bytes("5 pints").find("\"5 pints\" has the unknown unit \"pints\""), std::string::npos);
}

TEST(ParseBytes, RefusesWhatDoesNotFit) {
  EXPECT_NE(fault_of_bytes("1e300").find("larger than any memory"), std::string::npos);
  EXPECT_NE(fault_of_bytes("99999999 TiB").find("larger than any memory"), std::string::npos);
}

TEST(FormatBytes, UsesTheLargestUnitThatLeavesAtLeastOne) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1_KiB), "1.0 KiB");
  EXPECT_EQ(format_bytes(412_MiB + 307_KiB), "412.3 MiB");
  EXPECT_EQ(format_bytes(3_GiB), "3.0 GiB");
}

TEST(FormatBytes, NeverPrints1024OfAUnit) { EXPECT_EQ(format_bytes(1_MiB - 1), "1.0 MiB"); }

TEST(FormatBytes, KeepsTheSignOfADifference) {
  EXPECT_EQ(format_bytes(-5), "-5 B");
  EXPECT_EQ(format_bytes(-2_MiB), "-2.0 MiB");
}

TEST(FormatBytes, IsReadBackBySameUnits) { EXPECT_EQ(parse_bytes(format_bytes(212_MiB)), 212_MiB); }

}  // namespace
}  // namespace snug
