#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "snug/base/bytes.h"
#include "snug/plan/budget.h"

namespace snug::plan {

/// A share of the peak that the same step has without any plan.
struct Percent {
  double value = 100.0;  ///< in (0, 100]

  bool operator==(const Percent&) const = default;
};

/// A budget as somebody asks for it who need not know what the step takes: so many bytes, more than none, or a share.
/// Texts are read into it once, where they come in; where there may be none it is optional.
using BudgetRequest = std::variant<Bytes, Percent>;

/// Reads "400MiB", as parse_bytes does, or "60%", with white space around; nullopt when there is nothing else. Throws
/// UsageError for zero, less than zero, more than 100% and anything else.
std::optional<BudgetRequest> parse_budget(std::string_view text);

/// A text that parse_budget reads as the same, to the byte and the bit: "400MiB", "1000B", "60%", "".
std::string to_text(const std::optional<BudgetRequest>& request);

/// What is known of it before the step is: the bytes, where it asks for bytes.
std::optional<Bytes> limit_of(const std::optional<BudgetRequest>& request);

/// The budget for a step that takes `unplanned_peak` bytes with everything kept; nullopt where none is asked for.
std::optional<Budget> budget_for(const std::optional<BudgetRequest>& request, Bytes unplanned_peak);

}  // namespace snug::plan
