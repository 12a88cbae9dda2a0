#include "snug/optim/parameter_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <stdexcept>

#include "snug/base/comma_list.h"
#include "snug/base/errors.h"
#include "snug/base/name_pattern.h"
#include "snug/base/nearest.h"

namespace snug::optim {
namespace {

[[noreturn]] void refuse(std::string_view rule, std::string_view why) {
  throw UsageError(fmt::format(
      "optimizer.groups: \"{}\" {}; write PATTERN: weight_decay=NUMBER learning_rate=NUMBER, and ; between rules", rule,
      why));
}

/// What stands before and behind the first `mark`; nothing behind where there is none.
std::pair<std::string_view, std::optional<std::string_view>> cut(std::string_view text, char mark) {
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) return {text, std::nullopt};
  return {text.substr(0, at), text.substr(at + 1)};
}

double number_in(std::string_view rule, std::string_view setting, std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(number) || number < 0)
    refuse(rule, fmt::format("has {} = \"{}\", which must be a number, at least 0", setting, text));
  return number;
}

GroupRule parse_rule(std::string_view text) {
  const auto [pattern, settings] = cut(text, ':');
  if (trimmed(pattern).empty() || !settings) refuse(text, "has no pattern and colon in front");
  GroupRule rule{std::string(trimmed(pattern)), std::nullopt, std::nullopt};
  std::optional<std::string_view> rest = trimmed(*settings);
  while (rest && !rest->empty()) {
    const auto [word, behind] = cut(*rest, ' ');
    const auto [name, value] = cut(word, '=');
    if (!value) refuse(text, fmt::format("has \"{}\", which is no setting", word));
    if (name == "weight_decay") {
      rule.weight_decay = number_in(text, name, *value);
    } else if (name == "learning_rate") {
      rule.learning_rate = number_in(text, name, *value);
    } else {
      refuse(text, fmt::format("has the unknown setting \"{}\"", name));
    }
    rest = behind ? std::optional(trimmed(*behind)) : std::nullopt;
  }
  if (!rule.weight_decay && !rule.learning_rate) refuse(text, "sets nothing");
  return rule;
}

}  // namespace

std::vector<GroupRule> parse_group_rules(std::string_view text) {
  std::vector<GroupRule> rules;
  for (std::optional<std::string_view> rest = text; rest;) {
    const auto [rule, behind] = cut(*rest, ';');
    if (!trimmed(rule).empty()) rules.push_back(parse_rule(trimmed(rule)));
    rest = behind;
  }
  return rules;
}

void refuse_parts(const Parameters& parameters, std::string_view optimizer) {
  if (parameters.parts.empty()) return;
  throw UsageError(
      fmt::format("optimizer: {} updates whole matrices, and these are shards of them; use adamw, adamw_8bit, lion or "
                  "sgd, or leave "
                  "parameters whole",
                  optimizer));
}

std::vector<ParameterGroup> grouped(const Parameters& parameters) {
  if (!parameters.rules.empty() && parameters.names.size() != parameters.tensors.size())
    throw std::logic_error("optim::grouped: rules need a name for every parameter");
  std::vector<ParameterGroup> groups;
  std::vector<bool> used(parameters.rules.size(), false);
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
    ParameterGroup own;
    if (parameters.part(i).whole.dim() < 2) own.weight_decay = 0;
    for (std::size_t r = 0; r < parameters.rules.size(); ++r) {
      const GroupRule& rule = parameters.rules[r];
      if (!name_matches(rule.pattern, parameters.names[i])) continue;
      used[r] = true;
      if (rule.weight_decay) own.weight_decay = rule.weight_decay;
      if (rule.learning_rate) own.learning_rate = *rule.learning_rate;
    }
    const auto same = std::ranges::find_if(groups, [&](const ParameterGroup& group) {
      return group.weight_decay == own.weight_decay && group.learning_rate == own.learning_rate;
    });
    (same == groups.end() ? groups.emplace_back(own) : *same).members.push_back(i);
  }
  for (std::size_t r = 0; r < used.size(); ++r) {
    const auto is_named = [&](const auto& name) { return name_matches(parameters.rules[r].pattern, name); };
    if (used[r] || std::ranges::any_of(parameters.names_elsewhere, is_named)) continue;
    throw UsageError(
        fmt::format("optimizer.groups: no parameter that trains has a name of the pattern \"{}\"; {}patterns "
                    "are of whole names, or of their ends behind a dot",
                    parameters.rules[r].pattern, did_you_mean(parameters.rules[r].pattern, parameters.names)));
  }
  return groups;
}

}  // namespace snug::optim
