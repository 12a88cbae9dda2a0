#include "snug/report/count.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace snug::report {

std::string format_count(std::int64_t count) {
  constexpr std::array<std::pair<double, char>, 3> kUnits{{{1e9, 'G'}, {1e6, 'M'}, {1e3, 'K'}}};
  for (const auto& [unit, letter] : kUnits) {
    const double value = static_cast<double>(count) / unit;
    if (value >= 1) return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, letter);
  }
  return fmt::format("{}", count);
}

std::string format_share(std::int64_t part, std::int64_t whole, int digits) {
  if (whole <= 0) return "";
  return fmt::format(" ({:.{}f} %)", 100.0 * static_cast<double>(part) / static_cast<double>(whole), digits);
}

}  // namespace snug::report
