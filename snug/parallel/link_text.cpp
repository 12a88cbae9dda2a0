#include "snug/parallel/link_text.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "snug/base/errors.h"

namespace snug::parallel {
namespace {

/// The number at the front, which is taken from `text`.
std::optional<double> take_number(std::string_view& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  while (text.starts_with(' ')) text.remove_prefix(1);
  return number;
}

std::optional<double> rate_of(std::string_view text) {
  const std::optional<double> number = take_number(text);
  if (!number) return std::nullopt;
  double per_unit = 0;
  if (text.ends_with("bps")) {
    per_unit = 1.0 / 8;
  } else if (text.ends_with("Bps") || text.ends_with("B/s")) {
    per_unit = 1;
  } else {
    return std::nullopt;
  }
  text.remove_suffix(3);
  static constexpr std::array<std::pair<std::string_view, double>, 9> kPrefixes = {{{"", 1},
                                                                                    {"k", 1e3},
                                                                                    {"M", 1e6},
                                                                                    {"G", 1e9},
                                                                                    {"T", 1e12},
                                                                                    {"Ki", 1024.0},
                                                                                    {"Mi", 1048576.0},
                                                                                    {"Gi", 1073741824.0},
                                                                                    {"Ti", 1099511627776.0}}};
  for (const auto& [prefix, factor] : kPrefixes) {
    if (text == prefix) return *number * factor * per_unit;
  }
  return std::nullopt;
}

std::optional<double> seconds_of(std::string_view text) {
  const std::optional<double> number = take_number(text);
  if (!number) return std::nullopt;
  static constexpr std::array<std::pair<std::string_view, double>, 4> kUnits = {
      {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}}};
  for (const auto& [unit, factor] : kUnits) {
    if (text == unit) return *number * factor;
  }
  return std::nullopt;
}

}  // namespace

Link parse_link(std::string_view text, double otherwise) {
  // "B/s" has one of its own.
  std::size_t slash = text.find('/');
  if (slash != std::string_view::npos && text.substr(slash).starts_with("/s") && slash > 0 && text[slash - 1] == 'B')
    slash = text.find('/', slash + 1);
  const std::optional<double> rate = rate_of(text.substr(0, slash));
  const std::optional<double> latency =
      slash == std::string_view::npos ? std::optional(otherwise) : seconds_of(text.substr(slash + 1));
  constexpr double kLeastBytes = 1e5, kMostBytes = 1e18, kMostSeconds = 0.1;  // as processes train over
  if (!rate || *rate < kLeastBytes || *rate > kMostBytes || !latency || *latency > kMostSeconds) {
    throw UsageError(fmt::format(
        "link: \"{}\" is no link; write what it sends in a second, from 1Mbps on, in bits (kbps, Mbps, Gbps, Tbps) or "
        "bytes (MBps, GBps, MB/s, GB/s, GiBps, ...), and how long a message is under way, in us, ms or s, up to 100ms, "
        "as in 400Gbps/10us or 50GBps",
        text));
  }
  return {.bytes_per_second = *rate, .seconds_per_message = *latency};
}

std::string in_words(const Link& link) {
  return fmt::format("{:.3g} GB/s, {:.4g} us a message", link.bytes_per_second / 1e9, link.seconds_per_message * 1e6);
}

std::string to_text(const Link& link) {
  return fmt::format("{:.3g}GBps/{:.4g}us", link.bytes_per_second / 1e9, link.seconds_per_message * 1e6);
}

}  // namespace snug::parallel
