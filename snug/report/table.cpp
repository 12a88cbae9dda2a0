#include "snug/report/table.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <numeric>

#include "snug/base/errors.h"

namespace snug::report {
namespace {

struct Character {
  std::size_t bytes;
  int columns;
};

Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.starts_with("\x1b[")) {
    // A control sequence ends with the first byte from '@' to '~'.
    std::size_t end = 2;
    while (end < text.size() && (byte(end) < 0x40 || byte(end) > 0x7e)) ++end;
    return {std::min(end + 1, text.size()), 0};
  }
  utf8proc_int32_t code = 0;
  const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                       static_cast<utf8proc_ssize_t>(text.size()), &code);
  if (length <= 1) return {1, 1};  // ASCII, or no UTF-8
  return {static_cast<std::size_t>(length), utf8proc_charwidth(code)};
}

bool looks_like_number(std::string_view cell) {
  for (const std::string_view sign : {"-", "+", "~", "−", "≤", "≥"}) {
    if (cell.starts_with(sign)) {
      cell.remove_prefix(sign.size());
      break;
    }
  }
  if (cell.starts_with('.')) cell.remove_prefix(1);
  return !cell.empty() && std::isdigit(static_cast<unsigned char>(cell[0])) != 0;
}

std::string repeated(std::string_view piece, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += piece;
  return result;
}

std::string printable(std::string_view text) {
  std::string shown(text);
  std::ranges::replace_if(
      shown, [](char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\x1b') || c == '\x7f'; }, ' ');
  return shown;
}

/// As many characters as fit into `width` columns, and one at least. Where that is not all of them, up to the last
/// blank if there is one.
std::string_view first_line(std::string_view text, int width) {
  std::size_t end = 0, blank = 0;
  int columns = 0;
  while (end < text.size()) {
    const Character next = first_character(text.substr(end));
    if (columns + next.columns > width && end > 0) break;
    if (text[end] == ' ') blank = end;
    columns += next.columns;
    end += next.bytes;
  }
  if (end == text.size() || text[end] == ' ') return text.substr(0, end);
  return text.substr(0, blank > 0 ? blank : end);
}

std::vector<std::string> lines_of(std::string_view text, int width) {
  const std::string shown = printable(text);
  std::string_view rest = shown;
  std::vector<std::string> lines;
  do {
    const std::string_view line = first_line(rest, width);
    lines.emplace_back(line);
    rest.remove_prefix(line.size());
    if (rest.starts_with(' ')) rest.remove_prefix(1);
  } while (!rest.empty());
  return lines;
}

std::string padded(const std::string& line, int width, bool right) {
  // A wide character does not fit into one column.
  const std::string padding(static_cast<std::size_t>(std::max(0, width - display_width(line))), ' ');
  return right ? padding + line : line + padding;
}

/// Takes from the widest until all have room; what the lines between them take comes on top.
void narrow(std::vector<int>& widths, int most_columns) {
  const int count = static_cast<int>(widths.size());
  int spare = most_columns - (3 * count + 1) - std::accumulate(widths.begin(), widths.end(), 0);
  for (; spare < 0; ++spare) {
    const auto widest = std::ranges::max_element(widths);
    if (*widest <= 1) return;
    --*widest;
  }
}

using Row = std::vector<std::string>;

std::string rule_line(const std::vector<int>& widths, std::string_view left, std::string_view cross,
                      std::string_view right) {
  std::string line(left);
  for (std::size_t i = 0; i < widths.size(); ++i) {
    line += repeated("─", widths[i] + 2);
    line += i + 1 < widths.size() ? cross : right;
  }
  return line + "\n";
}

std::string row_lines(const std::vector<int>& widths, const Row& row, const std::vector<bool>& right) {
  std::vector<std::vector<std::string>> cells;
  std::size_t height = 1;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    cells.push_back(lines_of(row[i], widths[i]));
    height = std::max(height, cells.back().size());
  }
  std::string text;
  for (std::size_t line = 0; line < height; ++line) {
    text += "│";
    for (std::size_t i = 0; i < widths.size(); ++i) {
      text += " " + padded(line < cells[i].size() ? cells[i][line] : "", widths[i], right[i]) + " │";
    }
    text += "\n";
  }
  return text;
}

std::string title_lines(std::string_view title, std::optional<int> most_columns) {
  if (title.empty()) return "";
  if (!most_columns) return fmt::format("{}\n", title);
  std::string text;
  for (const std::string& line : lines_of(title, *most_columns)) text += line + "\n";
  return text;
}

/// `header` may be empty: then there is no header line.
std::string render(std::string_view title, const Row& header, const std::vector<Row>& rows, std::size_t columns,
                   std::optional<int> most_columns) {
  std::vector<int> widths(columns, 0);
  std::vector<bool> all_numbers(columns, !rows.empty());
  const auto widen = [&](const Row& row) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
  };
  widen(header);
  for (const Row& row : rows) {
    widen(row);
    for (std::size_t i = 0; i < columns; ++i) all_numbers[i] = all_numbers[i] && looks_like_number(row[i]);
  }
  if (most_columns) narrow(widths, *most_columns);
  std::string text = title_lines(title, most_columns);
  text += rule_line(widths, "┌", "┬", "┐");
  if (!header.empty()) {
    text += row_lines(widths, header, all_numbers);
    text += rule_line(widths, "├", "┼", "┤");
  }
  for (const Row& row : rows) {
    std::vector<bool> right(columns);
    for (std::size_t i = 0; i < columns; ++i) right[i] = looks_like_number(row[i]);
    text += row_lines(widths, row, right);
  }
  return text + rule_line(widths, "└", "┴", "┘");
}

}  // namespace

int display_width(std::string_view text) {
  int columns = 0;
  while (!text.empty()) {
    const Character character = first_character(text);
    columns += character.columns;
    text.remove_prefix(character.bytes);
  }
  return columns;
}

std::string render_table(std::string_view title, std::span<const TableRow> rows, std::optional<int> most_columns) {
  std::vector<Row> cells;
  for (const TableRow& row : rows) cells.push_back({row.label, row.value});
  return render(title, {}, cells, 2, most_columns);
}

std::string render_table(std::string_view title, std::span<const std::string> header,
                         std::span<const std::vector<std::string>> rows, std::optional<int> most_columns) {
  std::vector<Row> cells(rows.begin(), rows.end());
  for (Row& row : cells) {
    if (row.size() > header.size()) {
      throw Error(fmt::format("table: a row has {} cells, but the header names {} columns; name them all", row.size(),
                              header.size()));
    }
    row.resize(header.size());
  }
  if (header.empty()) return title_lines(title, most_columns);
  return render(title, Row(header.begin(), header.end()), cells, header.size(), most_columns);
}

}  // namespace snug::report
