#include "snug/plan/budget_request.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <system_error>
#include <utility>

#include "snug/base/errors.h"

namespace snug::plan {
namespace {

std::string_view without_space_around(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::string exact(Bytes bytes) {
  static constexpr std::array<std::pair<Bytes, const char*>, 4> kUnits = {
      {{1024 * 1_GiB, "TiB"}, {1_GiB, "GiB"}, {1_MiB, "MiB"}, {1_KiB, "KiB"}}};
  for (const auto& [size, unit] : kUnits) {
    if (bytes % size == 0) return fmt::format("{}{}", bytes / size, unit);
  }
  return fmt::format("{}B", bytes);
}

}  // namespace

std::optional<BudgetRequest> parse_budget(std::string_view text) {
  const std::string_view budget = without_space_around(text);
  if (budget.empty()) return std::nullopt;
  if (budget.back() == '%') {
    const std::string_view number = without_space_around(budget.substr(0, budget.size() - 1));
    double percent = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), percent);
    const bool whole = error == std::errc{} && end == number.data() + number.size();
    if (whole && percent > 0 && percent <= 100) return Percent{percent};
    throw UsageError(fmt::format("budget: \"{}\" is not a percentage above 0 and up to 100; write it as in 60%", text));
  }
  const Bytes bytes = parse_bytes(budget);
  const bool has_unit = budget.find_first_not_of("0123456789.") != std::string_view::npos;
  if (bytes > 0 && bytes < 1_MiB && !has_unit) {
    throw UsageError(
        fmt::format("budget: \"{0}\" has no unit, and {0} bytes are no memory to train in; write {0}%, "
                    "{0}MiB, or {0}B where bytes are meant",
                    budget));
  }
  if (bytes > 0) return bytes;
  throw UsageError(
      fmt::format("budget: \"{}\" leaves no memory at all; give more than 0 bytes, or leave it empty for "
                  "no budget",
                  text));
}

std::string to_text(const std::optional<BudgetRequest>& request) {
  if (!request) return "";
  if (const auto* percent = std::get_if<Percent>(&*request)) return fmt::format("{}%", percent->value);
  return exact(std::get<Bytes>(*request));
}

std::optional<Bytes> limit_of(const std::optional<BudgetRequest>& request) {
  if (!request || !std::holds_alternative<Bytes>(*request)) return std::nullopt;
  return std::get<Bytes>(*request);
}

std::optional<Budget> budget_for(const std::optional<BudgetRequest>& request, Bytes unplanned_peak) {
  if (!request) return std::nullopt;
  if (const auto* percent = std::get_if<Percent>(&*request)) {
    return Budget::for_share(percent->value / 100.0, unplanned_peak);
  }
  return Budget::for_limit(std::get<Bytes>(*request));
}

}  // namespace snug::plan
