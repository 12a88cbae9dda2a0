#include "snug/plan/step/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <ostream>
#include <stdexcept>

#include "snug/base/errors.h"
#include "snug/base/json_field.h"

namespace snug::plan {
namespace {

/// Bytes in a file: sums and small multiples of them fit into 63 bits, and JSON readers that use doubles read them
/// exactly.
constexpr Range kBytes{.low = 0, .high = 0x1p53};
constexpr int kPlanVersion = 2;  // 1 had signatures by other hashes
constexpr const char* kPlanFormat = "snug memory plan";

// One letter a value: plans stay small and can be compared by eye.
struct Letter {
  char letter;
  Action action;
};
constexpr std::array kLetters = {
    Letter{'k', kKeep},
    Letter{'m', kMove},
    Letter{'d', kMoveToDisk},
    Letter{'r', kRecompute},
    Letter{'z', compressed(Codec::Zeros)},
    Letter{'b', compressed(Codec::Bits)},
    Letter{'n', compressed(Codec::Narrow)},
    Letter{'e', compressed(Codec::Exponents)},
    Letter{'h', compressed(Codec::BFloat16)},
    Letter{'f', compressed(Codec::Float8)},
    Letter{'i', compressed(Codec::Int8)},
    Letter{'q', compressed(Codec::Int4)},
};

using Json = nlohmann::ordered_json;

char letter_of(const Action& action) {
  const auto* found = std::ranges::find(kLetters, action, &Letter::action);
  if (found == kLetters.end()) throw std::logic_error("memory plan: an action without a letter");
  return found->letter;
}

Action action_of(char letter, const JsonField& actions) {
  const auto* found = std::ranges::find(kLetters, letter, &Letter::letter);
  if (found == kLetters.end()) {
    actions.refuse(
        "a letter for each value: k keeps it, m moves it to the host, d to the disk, r recomputes it, z, b, n or e "
        "compresses it, h, f, i or q with loss");
  }
  return found->action;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const MemoryPlan& plan) {
  out << fmt::format("{}: peak {} of {}, step {:.3f} s of {:.3f} s", plan.strategy, format_bytes(plan.predicted_peak),
                     format_bytes(plan.unplanned_peak), plan.predicted_seconds, plan.unplanned_seconds);
  if (plan.budget > 0) out << fmt::format(", budget {}", format_bytes(plan.budget));
  return out;
}

MemoryPlan with_action(MemoryPlan plan, ValueId value, Action action) {
  plan.actions[at(value)] = action;
  return plan;
}

Json to_json(const MemoryPlan& plan) {
  std::string actions;
  for (const Action& action : plan.actions) actions += letter_of(action);
  Json segments = Json::array();
  for (const SegmentRange& range : plan.segments) segments.push_back({range.begin, range.end});
  Json json = {{"format", kPlanFormat},
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
  if (plan.staging != Staging{})
    json["staging"] = {{"leaving_bytes", plan.staging.leaving},
                       {"arriving_bytes", plan.staging.arriving},
                       {"first_fetch", plan.staging.first},
                       {"fetch_order", plan.staging.order}};
  for (const PlannedPart& part : plan.others) {
    json["others"].push_back({{"device", part.device},
                              {"budget_bytes", part.budget},
                              {"predicted_peak_bytes", part.predicted_peak},
                              {"unplanned_peak_bytes", part.unplanned_peak}});
  }
  return json;
}

MemoryPlan memory_plan_from(const JsonField& json) {
  if (const JsonField format = json.at("format"); !format.is(kPlanFormat)) format.refuse(quoted_text(kPlanFormat));
  if (const auto version = json.required<std::int64_t>("version"); version != kPlanVersion) {
    json.fail(fmt::format("it is of version {}, and this snug reads {}; make it again with snug plan --out", version,
                          kPlanVersion));
  }
  MemoryPlan plan;
  plan.strategy = json.required<std::string>("strategy");
  plan.fingerprint = json.required<std::uint64_t>("fingerprint");
  plan.budget = json.required<Bytes>("budget_bytes", kBytes);
  plan.predicted_peak = json.required<Bytes>("predicted_peak_bytes", kBytes);
  plan.unplanned_peak = json.required<Bytes>("unplanned_peak_bytes", kBytes);
  plan.predicted_seconds = json.required<double>("predicted_step_seconds", kNotNegative);
  plan.unplanned_seconds = json.required<double>("unplanned_step_seconds", kNotNegative);
  const JsonField actions = json.at("actions");
  for (const char letter : actions.as<std::string>()) plan.actions.push_back(action_of(letter, actions));
  for (const JsonField& range : json.at("segments").items()) {
    const auto begin = range.at(0).as<OpId>(kNotNegative);
    plan.segments.push_back({begin, range.at(1).as<OpId>({.low = static_cast<double>(begin)})});
  }
  if (const auto staging = json.find("staging")) {
    plan.staging = {.leaving = staging->required<Bytes>("leaving_bytes", kBytes),
                    .arriving = staging->required<Bytes>("arriving_bytes", kBytes),
                    .first = staging->required<std::int32_t>("first_fetch", kNotNegative)};
    const Range values{.low = 0, .high = static_cast<double>(plan.actions.size()) - 1};
    for (const JsonField& value : staging->at("fetch_order").items())
      plan.staging.order.push_back(value.as<ValueId>(values));
  }
  if (const auto others = json.find("others")) {
    for (const JsonField& part : others->items()) {
      plan.others.push_back({.device = part.required<std::string>("device"),
                             .budget = part.required<Bytes>("budget_bytes", kBytes),
                             .predicted_peak = part.required<Bytes>("predicted_peak_bytes", kBytes),
                             .unplanned_peak = part.required<Bytes>("unplanned_peak_bytes", kBytes)});
    }
  }
  return plan;
}

MemoryPlan memory_plan_from_json(const nlohmann::json& json) {
  return memory_plan_from(JsonFile::parsed(json, {"memory plan", kPlanCure}).root());
}

}  // namespace snug::plan
