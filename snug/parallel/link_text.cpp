#include "snug/parallel/link_text.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/quantity.h"

namespace snug::parallel {
namespace {

constexpr std::array<std::pair<std::string_view, double>, 4> kTimes = {
    {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}}};

}  // namespace

Link parse_link(std::string_view text, double otherwise) {
  // "B/s" has one of its own.
  std::size_t slash = text.find('/');
  if (slash != std::string_view::npos && text.substr(slash).starts_with("/s") && slash > 0 && text[slash - 1] == 'B')
    slash = text.find('/', slash + 1);
  const std::optional<double> rate = read_rate(text.substr(0, slash));
  const std::optional<double> latency =
      slash == std::string_view::npos ? std::optional(otherwise) : read_quantity(text.substr(slash + 1), kTimes);
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
