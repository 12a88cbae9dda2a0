#include "snug/plan/step/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "snug/base/errors.h"
#include "snug/base/json_integer.h"

namespace snug::plan {
namespace {

constexpr int kPlanVersion = 2;  // 1 had signatures by other hashes
constexpr const char* kPlanFormat = "snug memory plan";

// One letter a value: plans stay small and can be compared by eye.
struct Letter {
  char letter;
  Action action;
};
constexpr std::array kLetters = {Letter{'k', kKeep}, Letter{'m', kMove}, Letter{'r', kRecompute}};

using Json = nlohmann::ordered_json;

char letter_of(const Action& action) {
  const auto* found = std::ranges::find(kLetters, action, &Letter::action);
  if (found == kLetters.end()) throw std::logic_error("memory plan: an action without a letter");
  return found->letter;
}

Action action_of(char letter) {
  const auto* found = std::ranges::find(kLetters, letter, &Letter::letter);
  if (found == kLetters.end()) {
    throw UsageError(fmt::format(
        "memory plan: '{}' is no action; k keeps a value, m moves it to the host, r recomputes it", letter));
  }
  return found->action;
}

}  // namespace

MemoryPlan with_action(MemoryPlan plan, ValueId value, Action action) {
  plan.actions[at(value)] = action;
  return plan;
}

Json to_json(const MemoryPlan& plan) {
  std::string actions;
  for (const Action& action : plan.actions) actions += letter_of(action);
  Json segments = Json::array();
  for (const SegmentRange& range : plan.segments) segments.push_back({range.begin, range.end});
  return {{"format", kPlanFormat},
          {"version", kPlanVersion},
          {"strategy", plan.strategy},
          {"fingerprint", plan.fingerprint},
          {"budget_bytes", plan.budget},
          {"predicted_peak_bytes", plan.predicted_peak},
          {"unplanned_peak_bytes", plan.unplanned_peak},
          {"predicted_step_seconds", plan.predicted_seconds},
          {"unplanned_step_seconds", plan.unplanned_seconds},
          {"actions", actions},
          {"segments", segments}};
}

MemoryPlan memory_plan_from_json(const Json& json) try {
  if (json.at("format") != kPlanFormat) throw UsageError(fmt::format("memory plan: not a \"{}\"", kPlanFormat));
  if (json.at("version") != kPlanVersion) {
    throw UsageError(
        fmt::format("memory plan: it is of version {}, and this snug reads {}; make it again with snug plan --out",
                    json.at("version").dump(), kPlanVersion));
  }
  MemoryPlan plan;
  plan.strategy = json.at("strategy");
  plan.fingerprint = json_integer<std::uint64_t>(json.at("fingerprint"));
  plan.budget = json_integer<Bytes>(json.at("budget_bytes"));
  plan.predicted_peak = json_integer<Bytes>(json.at("predicted_peak_bytes"));
  plan.unplanned_peak = json_integer<Bytes>(json.at("unplanned_peak_bytes"));
  plan.predicted_seconds = json.at("predicted_step_seconds");
  plan.unplanned_seconds = json.at("unplanned_step_seconds");
  for (const char c : json.at("actions").get<std::string>()) plan.actions.push_back(action_of(c));
  for (const Json& range : json.at("segments")) {
    const SegmentRange segment{json_integer<OpId>(range.at(0)), json_integer<OpId>(range.at(1))};
    if (segment.begin < 0 || segment.end < segment.begin) {
      throw UsageError(fmt::format("memory plan: segment {} is no range of operators", range.dump()));
    }
    plan.segments.push_back(segment);
  }
  return plan;
} catch (const std::exception& error) {
  if (dynamic_cast<const UsageError*>(&error) != nullptr) throw;
  throw UsageError(fmt::format("memory plan: {}", error.what()));
}

}  // namespace snug::plan
