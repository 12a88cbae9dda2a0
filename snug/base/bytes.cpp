#include "snug/base/bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/lower_case.h"

namespace snug {
namespace {

constexpr double kTooLarge = 9.2e18;

double unit_factor(std::string_view unit, std::string_view whole) {
  static constexpr std::array<std::pair<std::string_view, double>, 14> kUnits = {{
      {"", 1.0},
      {"b", 1.0},
      {"k", 1024.0},
      {"kib", 1024.0},
      {"m", 1048576.0},
      {"mib", 1048576.0},
      {"g", 1073741824.0},
      {"gib", 1073741824.0},
      {"t", 1099511627776.0},
      {"tib", 1099511627776.0},
      {"kb", 1e3},
      {"mb", 1e6},
      {"gb", 1e9},
      {"tb", 1e12},
  }};
  const std::string lower = in_lower_case(unit);
  for (const auto& [name, factor] : kUnits) {
    if (name == lower) return factor;
  }
  throw UsageError(fmt::format(
      "bytes: \"{}\" has the unknown unit \"{}\"; use B, KiB, MiB, GiB, TiB (powers of 1024) or kB, MB, GB, TB", whole,
      unit));
}

}  // namespace

Bytes parse_bytes(std::string_view text) {
  std::string plain;
  std::ranges::copy_if(text, std::back_inserter(plain), [](unsigned char c) { return std::isspace(c) == 0; });
  const bool starts_like_a_number =
      !plain.empty() && (std::isdigit(static_cast<unsigned char>(plain[0])) || plain[0] == '.');
  char* end = nullptr;
  const double number = starts_like_a_number ? std::strtod(plain.c_str(), &end) : 0.0;
  if (!starts_like_a_number || end == plain.c_str() || in_lower_case(plain).starts_with("0x")) {
    throw UsageError(
        fmt::format("bytes: \"{}\" is not a size; write a non-negative number and a unit, as in 400MiB", text));
  }
  const double bytes = number * unit_factor(end, text);
  if (!std::isfinite(bytes) || bytes > kTooLarge) {
    throw UsageError(fmt::format("bytes: \"{}\" is larger than any memory", text));
  }
  return static_cast<Bytes>(std::llround(bytes));
}

std::string format_bytes(Bytes bytes) {
  static constexpr std::array<const char*, 4> kUnits = {"KiB", "MiB", "GiB", "TiB"};
  const double magnitude = std::abs(static_cast<double>(bytes));
  if (magnitude < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024.0;
  std::size_t unit = 0;
  // 1023.95 would print as "1024.0": go up one unit instead.
  while (std::abs(value) >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace snug
