#include "snug/report/table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
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

std::vector<int> widths_of(const std::string& table) {
  std::vector<int> widths;
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) widths.push_back(display_width(line));
  return widths;
}

TEST(RenderTable, BreaksTheWidestCellsAtBlanksWhereThereIsLittleRoom) {
  const std::vector<TableRow> rows = {{"memory", "23.5 GiB, 20.6 GiB available"}, {"devices", "CPU"}};
  EXPECT_EQ(render_table("what this machine has", rows, 30),
            "what this machine has\n"
            "┌─────────┬──────────────────┐\n"
            "│ memory  │   23.5 GiB, 20.6 │\n"
            "│         │    GiB available │\n"
            "│ devices │ CPU              │\n"
            "└─────────┴──────────────────┘\n");
}

TEST(RenderTable, BreaksWordsThatAreLongerThanTheirColumn) {
  const std::vector<TableRow> rows = {{"key", "日本日本日本"}, {"a", "abcdefghij"}};
  EXPECT_EQ(render_table("", rows, 16),
            "┌─────┬────────┐\n"
            "│ key │ 日本日 │\n"
            "│     │ 本日本 │\n"
            "│ a   │ abcdef │\n"
            "│     │ ghij   │\n"
            "└─────┴────────┘\n");
}

TEST(RenderTable, IsNeverWiderThanItMay) {
  const Row header = {"strategy", "budget", "predicted peak", "measured peak", "predicted step", "measured step"};
  const std::vector<Row> rows = {
      {"optimal", "212.0 MiB (60 %)", "200.1 MiB", "200.2 MiB", "x 1.070", "0.123 s, x 1.071"},
      {"every_block", "none", "needs 100.0 MiB", "", "", ""}};
  const int natural = widths_of(render_table("", header, rows)).front();
  for (int columns = 25; columns <= natural + 3; ++columns) {
    const std::string table = render_table("a title that is long, too", header, rows, columns);
    for (const int width : widths_of(table)) EXPECT_LE(width, std::min(columns, natural)) << table;
  }
  EXPECT_EQ(render_table("t", header, rows, natural), render_table("t", header, rows));
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
