#include "snug/report/table.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "snug/base/errors.h"

namespace snug::report {
namespace {

using Row = std::vector<std::string>;

TEST(DisplayWidth, CountsColumnsAndNotBytes) {
  EXPECT_EQ(display_width(""), 0);
  EXPECT_EQ(display_width("abc"), 3);
  EXPECT_EQ(display_width("påth"), 4);
  EXPECT_EQ(display_width("日本"), 4);
  EXPECT_EQ(display_width("e\u0301"), 1);
  EXPECT_EQ(display_width("▕██▏"), 4);
  EXPECT_EQ(display_width("😀"), 2);
}

TEST(DisplayWidth, LeavesOutColourSequences) {
  EXPECT_EQ(display_width("\x1b[32mok\x1b[0m"), 2);
  EXPECT_EQ(display_width("\x1b[1;3"), 0);
}

TEST(DisplayWidth, CountsBrokenUtf8ByBytes) {
  EXPECT_EQ(display_width("\xff\xfe"), 2);
  EXPECT_EQ(display_width("a\xe6\x97"), 3);
  EXPECT_EQ(display_width("\xc3("), 2);
}

TEST(RenderTable, StandsNumbersRightAndTextLeft) {
  const std::vector<TableRow> rows = {{"peak", "212.0 MiB"}, {"strategy", "greedy"}, {"recomputed", "+3 %"}};
  EXPECT_EQ(render_table("Plan", rows),
            "Plan\n"
            "┌────────────┬───────────┐\n"
            "│ peak       │ 212.0 MiB │\n"
            "│ strategy   │ greedy    │\n"
            "│ recomputed │      +3 % │\n"
            "└────────────┴───────────┘\n");
}

TEST(RenderTable, LeavesOutAnEmptyTitle) {
  const std::vector<TableRow> rows = {{"日本", "1"}};
  EXPECT_EQ(render_table("", rows),
            "┌──────┬───┐\n"
            "│ 日本 │ 1 │\n"
            "└──────┴───┘\n");
}

TEST(RenderTable, TurnsControlCharactersIntoSpaces) {
  const std::vector<TableRow> rows = {{"a\nb", "c\td"}};
  EXPECT_NE(render_table("", rows).find("│ a b │ c d │"), std::string::npos);
}

TEST(RenderTable, DrawsManyColumnsBelowAHeader) {
  const Row header = {"name", "bytes", "what"};
  const std::vector<Row> rows = {{"a", "12", "keep"}, {"longer", "3456"}};
  EXPECT_EQ(render_table("", header, rows),
            "┌────────┬───────┬──────┐\n"
            "│ name   │ bytes │ what │\n"
            "├────────┼───────┼──────┤\n"
            "│ a      │    12 │ keep │\n"
            "│ longer │  3456 │      │\n"
            "└────────┴───────┴──────┘\n");
}

TEST(RenderTable, StandsAHeaderRightOverAColumnOfNumbers) {
  const Row header = {"x", "y"};
  const std::vector<Row> rows = {{"1000", "-"}};
  EXPECT_NE(render_table("", header, rows).find("│    x │ y │\n"), std::string::npos);
}

TEST(RenderTable, RefusesARowWiderThanItsHeader) {
  const Row header = {"x"};
  const std::vector<Row> rows = {{"1", "2"}};
  try {
    render_table("", header, rows);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("a row has 2 cells, but the header names 1 columns"), std::string::npos);
  }
}

}  // namespace
}  // namespace snug::report
