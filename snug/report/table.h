#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace snug::report {

/// Columns that a UTF-8 text takes on a terminal: 2 for wide characters (CJK, emoji), 0 for combining marks and ANSI
/// colour sequences, 1 for everything else, bytes that are not UTF-8 included.
int display_width(std::string_view text);

struct TableRow {
  std::string label;
  std::string value;
};

/// A box of light lines with one line per row and the title, if any, above it. Values that begin with a digit, after
/// an optional sign, stand right; other text stands left. Control characters show as spaces. Ends with a line break.
/// Where it would be wider than `most_columns`, the widest columns become narrower and their cells several lines,
/// broken at blanks where there are any; each column keeps one character at least.
std::string render_table(std::string_view title, std::span<const TableRow> rows, std::optional<int> most_columns = {});

/// The same with any number of columns below a header line. A short row is filled up with empty cells; a row with more
/// cells than the header has is an Error.
std::string render_table(std::string_view title, std::span<const std::string> header,
                         std::span<const std::vector<std::string>> rows, std::optional<int> most_columns = {});

}  // namespace snug::report
