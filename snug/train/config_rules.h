#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "snug/plan/strategy.h"
#include "snug/train/config.h"

/// The rules that a configuration key can be held to. Each has describe(rule), the end of "it must be ...", empty for
/// none, and keeps(rule, value), whether a value of the key's type obeys. Private to config.cpp.
namespace snug::train::rules {

inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();

struct Anything {};
struct Range {
  double low;
  double high = kNoLimit;
  bool low_excluded = false;
  bool high_excluded = false;
};
template <class Choice>
struct OneOf {};
struct BudgetText {};
struct StrategyText {};

inline std::string describe(const Anything&) { return ""; }
inline std::string describe(const BudgetText&) { return "empty, bytes such as 400MiB, or a percentage such as 60%"; }
inline std::string describe(const StrategyText&) {
  return fmt::format("one of {}", fmt::join(plan::strategy_forms(), ", "));
}
template <class Choice>
std::vector<std::string> words_of(const OneOf<Choice>& /*rule*/) {
  std::vector<std::string> words;
  for (const auto& [name, value] : kWords<Choice>) words.emplace_back(name);
  return words;
}
template <class Choice>
std::string describe(const OneOf<Choice>& rule) {
  return fmt::format("one of {}", fmt::join(words_of(rule), ", "));
}
inline std::string describe(const Range& rule) {
  const std::string low = fmt::format("{} {}", rule.low_excluded ? "more than" : "at least", rule.low);
  if (rule.high == kNoLimit) return low;
  return fmt::format("{} and {} {}", low, rule.high_excluded ? "less than" : "at most", rule.high);
}

template <class Value>
bool keeps(const Anything&, const Value&) {
  return true;
}
template <class Choice>
bool keeps(const OneOf<Choice>& /*rule*/, Choice value) {
  return !word(value).empty();
}
inline bool keeps(const BudgetText&, const std::string& value) { return (parse_budget(value), true); }
inline bool keeps(const StrategyText&, const std::string& value) { return (plan::strategy_from(value), true); }
template <class Number>
bool keeps(const Range& rule, const Number& number) {
  const auto value = static_cast<double>(number);
  const bool above = rule.low_excluded ? value > rule.low : value >= rule.low;
  const bool below = rule.high_excluded ? value < rule.high : value <= rule.high;
  return above && below && std::isfinite(value);
}

}  // namespace snug::train::rules
