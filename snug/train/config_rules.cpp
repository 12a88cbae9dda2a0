#include "snug/train/config_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <variant>

#include "snug/memory/device_memory.h"
#include "snug/optim/parameter_groups.h"
#include "snug/plan/run/pipeline_schedule.h"
#include "snug/plan/strategy.h"
#include "snug/train/config.h"
#include "snug/train/knobs.h"

namespace snug::train::rules {

std::string one_of(const std::vector<std::string>& words) { return fmt::format("one of {}", fmt::join(words, ", ")); }

std::string describe(const Budget&) { return "empty, bytes such as 400MiB, or a percentage such as 60%"; }
std::string describe(const TierBudget&) { return "empty, or bytes such as 4GiB"; }
std::string describe(const StrategyText&) { return fmt::format("one of {}", fmt::join(plan::strategy_forms(), ", ")); }
std::string describe(const ScheduleText&) { return "one of f_then_b, 1f1b, interleaved(V)"; }
std::string describe(const Groups&) { return "PATTERN: weight_decay=NUMBER learning_rate=NUMBER, ; between"; }

bool keeps(const Budget&, const std::optional<plan::BudgetRequest>& value) {
  if (!value) return true;
  const auto* percent = std::get_if<plan::Percent>(&*value);
  return percent != nullptr ? percent->value > 0 && percent->value <= 100 : std::get<Bytes>(*value) > 0;
}
bool keeps(const TierBudget&, const std::optional<plan::BudgetRequest>& value) {
  const auto* const bytes = value ? std::get_if<Bytes>(&*value) : nullptr;
  return !value || (bytes != nullptr && *bytes > 0);
}
bool keeps(const StrategyText&, const std::string& value) { return (plan::strategy_from(value), true); }
bool keeps(const ScheduleText&, const std::string& value) {
  try {
    return !std::holds_alternative<plan::ZeroBubble>(plan::pipeline_schedule_from(value));
  } catch (const UsageError&) {
    return false;  // it would name zero_bubble, too
  }
}
bool keeps(const Groups&, const std::string& value) { return (optim::parse_group_rules(value), true); }
bool keeps(const KnobNames&, const std::string& value) { return (allowed_knobs(value), true); }
bool keeps(const DeviceName&, const std::string& value) { return (memory::device_named(value), true); }
bool DeviceName::same(const std::string& a, const std::string& b, const Config& /*config*/) {
  return memory::device_named(a).type() == memory::device_named(b).type();
}
bool keeps(const NameOf& rule, const std::string& value) { return std::ranges::count(rule.names(), value) > 0; }

}  // namespace snug::train::rules
