#pragma once

#include <optional>
#include <string>
#include <vector>

#include "snug/base/range.h"
#include "snug/plan/budget_request.h"
#include "snug/train/choices.h"

namespace snug::train {
struct Config;
}

/// The rules that a configuration key can be held to. Each, as snug::Range, has describe(rule), the end of "it must be
/// ...", empty for none, and keeps(rule, value), whether a value of the key's type obeys.
namespace snug::train::rules {

struct Anything {};
struct Budget {};
struct TierBudget {};
struct StrategyText {};
struct ScheduleText {};
struct Groups {};
struct KnobNames {};
struct DeviceName {
  /// A run may go on on another device of the type.
  static bool same(const std::string& a, const std::string& b, const Config& config);
};
/// One of a few words, which are an enum's.
template <class Choice>
struct OneOf {
  /// Whether two of them come to the same there, as "auto" and what it is; null: each is another.
  bool (*same)(Choice a, Choice b, const Config& config) = nullptr;
};
/// One of the names in an open set.
struct NameOf {
  std::vector<std::string> (*names)();
};

std::string one_of(const std::vector<std::string>& words);

template <class Choice>
std::vector<std::string> words_of(const OneOf<Choice>& /*rule*/) {
  std::vector<std::string> words;
  for (const auto& [name, value] : kWords<Choice>) words.emplace_back(name);
  return words;
}
inline std::vector<std::string> words_of(const NameOf& rule) { return rule.names(); }

inline std::string describe(const Anything&) { return ""; }
std::string describe(const Budget&);
std::string describe(const TierBudget&);
std::string describe(const StrategyText&);
std::string describe(const ScheduleText&);
std::string describe(const Groups&);
inline std::string describe(const KnobNames&) { return ""; }
inline std::string describe(const DeviceName&) { return ""; }
template <class Choice>
std::string describe(const OneOf<Choice>& rule) {
  return one_of(words_of(rule));
}
inline std::string describe(const NameOf& rule) { return one_of(words_of(rule)); }

template <class Value>
bool keeps(const Anything&, const Value&) {
  return true;
}
bool keeps(const Budget&, const std::optional<plan::BudgetRequest>& value);
bool keeps(const TierBudget&, const std::optional<plan::BudgetRequest>& value);
bool keeps(const StrategyText&, const std::string& value);
bool keeps(const ScheduleText&, const std::string& value);
bool keeps(const Groups&, const std::string& value);
bool keeps(const KnobNames&, const std::string& value);
bool keeps(const DeviceName&, const std::string& value);
template <class Choice>
bool keeps(const OneOf<Choice>& /*rule*/, Choice value) {
  return !word(value).empty();
}
bool keeps(const NameOf& rule, const std::string& value);

}  // namespace snug::train::rules
