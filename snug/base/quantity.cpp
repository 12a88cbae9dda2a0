#include "snug/base/quantity.h"

#include <array>
#include <charconv>
#include <cmath>

namespace snug {

std::optional<double> read_quantity(std::string_view text, std::span<const std::pair<std::string_view, double>> units) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  while (text.starts_with(' ')) text.remove_prefix(1);
  for (const auto& [unit, factor] : units) {
    if (text == unit) return number * factor;
  }
  return std::nullopt;
}

std::optional<double> read_rate(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 9> kPrefixes = {{{"", 1},
                                                                                    {"k", 1e3},
                                                                                    {"M", 1e6},
                                                                                    {"G", 1e9},
                                                                                    {"T", 1e12},
                                                                                    {"Ki", 1024.0},
                                                                                    {"Mi", 1048576.0},
                                                                                    {"Gi", 1073741824.0},
                                                                                    {"Ti", 1099511627776.0}}};
  constexpr std::size_t kLength = 3;  // of what stands behind the prefix
  const bool bits = text.ends_with("bps");
  if (!bits && !text.ends_with("Bps") && !text.ends_with("B/s")) return std::nullopt;
  text.remove_suffix(kLength);
  const std::optional<double> rate = read_quantity(text, kPrefixes);
  return rate && bits ? std::optional(*rate / 8) : rate;
}

}  // namespace snug
