#include "snug/base/nearest.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

namespace snug {
namespace {

std::size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<std::size_t> two_rows_up(b.size() + 1);
  std::vector<std::size_t> row_up(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row_up.begin(), row_up.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = row_up[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, row_up[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], two_rows_up[j - 2] + 1);
    }
    std::swap(two_rows_up, row_up);
    std::swap(row_up, row);
  }
  return row_up[b.size()];
}

constexpr std::size_t kShortestBeginning = 3;  // bytes

const std::string* shortest_with_beginning(std::string_view beginning, std::span<const std::string> known) {
  const std::string* shortest = nullptr;
  for (const std::string& name : known) {
    if (name.starts_with(beginning) && (shortest == nullptr || name.size() < shortest->size())) shortest = &name;
  }
  return shortest;
}

}  // namespace

std::optional<std::string> nearest_name(std::string_view wrong, std::span<const std::string> known) {
  const std::size_t limit = std::max<std::size_t>(2, wrong.size() / 3);
  const std::string* nearest = nullptr;
  std::size_t fewest = limit + 1;
  for (const std::string& name : known) {
    const std::size_t edits = edits_between(wrong, name);
    // As many edits as letters is another word, not a misspelt one ("x" for "lr").
    if (edits >= fewest || edits >= std::max(wrong.size(), name.size())) continue;
    fewest = edits;
    nearest = &name;
  }
  if (nearest == nullptr && wrong.size() >= kShortestBeginning) nearest = shortest_with_beginning(wrong, known);
  if (nearest == nullptr) return std::nullopt;
  return *nearest;
}

std::string did_you_mean(std::string_view wrong, std::span<const std::string> known) {
  const std::optional<std::string> nearest = nearest_name(wrong, known);
  return nearest ? "did you mean \"" + *nearest + "\"? " : "";
}

}  // namespace snug
