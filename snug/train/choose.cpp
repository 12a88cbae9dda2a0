#include "snug/train/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/plan/run/presets.h"
#include "snug/report/table.h"
#include "snug/train/config.h"
#include "snug/train/interrupt.h"
#include "snug/train/planned_experiment.h"
#include "snug/train/run_device.h"
#include "snug/train/whole_step.h"

namespace snug::train {
namespace {

/// Less than that is noise.
constexpr double kWorthwhile = 0.98;

Taken take(const Config& config) {
  Taken taken;
  try {
    Experiment experiment(config);
    const PlannedExperiment planned = plan_experiment(experiment, Kinds::Run);
    taken.unplanned_peak = replay::unplanned_peak(planned.kinds);
    taken.floor = smallest_budget(planned.kinds, planned.window);
    const auto in_all = [&](const auto& of_kind) {
      return planned.kinds.front().step.graph.update_seconds +
             whole_step_seconds(planned.kinds, config.train.accumulate, of_kind);
    };
    taken.unplanned_seconds = in_all([&](std::size_t i) { return planned.kinds[i].step.graph.step_seconds; });
    const auto plans = replay::plan_all(planned.kinds, planned.budget);
    taken.seconds = planned.window.cost.seconds + in_all([&](std::size_t i) { return plans[i].predicted_seconds; });
  } catch (const DoesNotFit& error) {
    taken.floor = std::max(taken.floor, error.floor().floor);
  }
  memory::device_memory(device_of(config)).release_cached();
  return taken;
}

/// A knob beside what has been taken; nullopt where it does not apply.
std::optional<Choice> try_knob(const Knob& knob, const Config& config, const Taken& now, report::Progress& progress) {
  const std::optional<Config> turned = knob.turned(config);
  if (!turned) return std::nullopt;
  Choice choice{.knob = &knob, .before = now, .after = {}, .taken = false, .why_not = {}};
  try {
    validate(*turned);
    choice.after = take(*turned);
  } catch (const UsageError& error) {
    choice.why_not = error.what();
    return choice;
  }
  progress.note(fmt::format("{}: at the least {}{}", knob.name, format_bytes(choice.after.floor),
                            choice.after.seconds ? fmt::format(", a step of {:.3f} s", *choice.after.seconds) : ""));
  return choice;
}

/// Whether one leads further than the other: what fits before what does not, then time, then memory.
bool better(const Taken& a, const Taken& b) {
  if (a.seconds && b.seconds) return *a.seconds < *b.seconds;
  if (a.seconds || b.seconds) return a.seconds.has_value();
  return a.floor < b.floor;
}

bool worthwhile(const Taken& after, const Taken& now) {
  if (now.seconds) return after.seconds && *after.seconds < kWorthwhile * *now.seconds;
  return after.seconds || static_cast<double>(after.floor) < kWorthwhile * static_cast<double>(now.floor);
}

std::string reason(const Taken& after, const Taken& now) {
  if (!after.seconds) return now.seconds ? "no plan fits the budget with it" : "it does not lower what the step takes";
  return "it makes the step no faster within the budget";
}

/// Whether it may be used though nobody has named it.
bool is_free(const Knob& knob, const Config& config) {
  return knob.changes == Knob::Changes::Nothing && (knob.is_free == nullptr || knob.is_free(config)) &&
         !config.given.contains(knob.key);
}

std::vector<const Knob*> usable(const Config& config) {
  std::vector<const Knob*> usable = allowed_knobs(config.memory.allow);
  for (const Knob& knob : knobs()) {
    const bool known = std::ranges::find(usable, &knob) != usable.end();
    if (!known && is_free(knob, config) && knob.turned(config)) usable.push_back(&knob);
  }
  return usable;
}

/// Those that the configuration names, change nothing of the step, and were not tried.
void add_inapplicable(Chosen& chosen, report::Progress& progress) {
  for (const Knob* knob : allowed_knobs(chosen.config.memory.allow)) {
    if (std::ranges::find(chosen.choices, knob, &Choice::knob) != chosen.choices.end()) continue;
    if (knob->turned(chosen.config)) continue;
    const std::string why = "it changes nothing here: " + knob->why_not(chosen.config);
    progress.note(fmt::format("memory.allow has {}: {}", knob->name, why));
    chosen.choices.push_back({.knob = knob, .before = {}, .after = {}, .taken = false, .why_not = why});
  }
}

/// Whether the knob, turned so often as it goes, leads from one configuration to what the other has of it.
bool leads_to(const Knob& knob, Config config, const Config& other) {
  Config there = config;
  knob.copy(other, there);
  for (std::optional<Config> turned = config; turned; turned = knob.turned(*std::move(turned))) {
    if (*turned == there) return true;
  }
  return false;
}

}  // namespace

Chosen choose(const Config& config, report::Progress& progress) {
  Chosen chosen{.config = config, .choices = {}};
  const std::vector<const Knob*> all = usable(config);
  if (all.empty() || !config.memory.budget) return chosen;
  if (std::ranges::none_of(all, [&](const Knob* knob) { return knob->turned(config).has_value(); })) {
    add_inapplicable(chosen, progress);
    return chosen;
  }
  progress.note("choosing: recording the step as it is");
  Taken now = take(config);
  if (now.unplanned_peak > 0) {
    const auto budget = plan::budget_for(config.memory.budget, now.unplanned_peak);
    chosen.config.memory.budget = budget->limit;
  }
  // Of a step that is as fast within the budget as without, nothing is to be gained.
  const auto slowed = [&] { return !now.seconds || kWorthwhile * *now.seconds > now.unplanned_seconds; };
  while (slowed() && !interrupted()) {
    std::vector<Choice> round;
    for (const Knob* knob : all) {
      if (auto choice = try_knob(*knob, chosen.config, now, progress)) round.push_back(*std::move(choice));
    }
    std::erase_if(round, [&](const Choice& choice) {
      if (!choice.why_not.empty()) chosen.choices.push_back(choice);
      return !choice.why_not.empty();
    });
    const auto best = std::ranges::min_element(round, better, &Choice::after);
    const bool goes_on = best != round.end() && worthwhile(best->after, now);
    if (goes_on) {
      best->taken = true;
      chosen.config = *best->knob->turned(chosen.config);
      now = best->after;
      progress.note(fmt::format("choosing {}", best->knob->name));
      chosen.choices.push_back(*best);
      continue;
    }
    for (Choice& choice : round) {
      choice.why_not = reason(choice.after, now);
      chosen.choices.push_back(std::move(choice));
    }
    break;
  }
  add_inapplicable(chosen, progress);
  return chosen;
}

DoesNotFit with_cheapest_change(const DoesNotFit& refusal, const Config& config, report::Progress& progress) {
  DoesNotFit::Floor floor = refusal.floor();
  Config capped = config;
  capped.memory.budget = floor.budget;
  std::optional<Choice> cheapest;
  for (const Knob& knob : knobs()) {
    if (knob.changes == Knob::Changes::Gradients) continue;
    std::optional<Choice> choice;
    try {
      choice = try_knob(knob, capped, {}, progress);
    } catch (const Stopped&) {
      break;
    }
    if (!choice || !choice->after.seconds) continue;
    if (!cheapest || better(choice->after, cheapest->after)) cheapest = std::move(choice);
  }
  if (cheapest) {
    const std::string before = config.memory.allow.empty() ? "" : config.memory.allow + ", ";
    floor.change =
        fmt::format("; with memory.allow = \"{}{}\" ({}) it fits", before, cheapest->knob->name, cheapest->knob->help);
  }
  return DoesNotFit(std::move(floor));
}

Config adopt_choices(const Config& config, const Config& before) {
  Config adopted = config;
  for (const Knob* knob : usable(config)) {
    const bool may_stay_off = knob->changes == Knob::Changes::Nothing && !knob->turned(adopted);
    if (may_stay_off || (config.given.contains(knob->key) && !leads_to(*knob, adopted, before))) continue;
    knob->copy(before, adopted);
  }
  if (adopted == config || !config.memory.budget || plan::limit_of(config.memory.budget)) return adopted;
  // A share is of the step as it is configured.
  if (const Taken as_configured = take(config); as_configured.unplanned_peak > 0)
    adopted.memory.budget = plan::budget_for(config.memory.budget, as_configured.unplanned_peak)->limit;
  return adopted;
}

nlohmann::ordered_json to_json(const std::vector<Choice>& choices) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  const auto or_null = [](const auto& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  for (const Choice& c : choices) {
    const bool tried = c.after.floor > 0;
    all.push_back(
        {{"name", c.knob->name},
         {"bitwise", c.knob->changes == Knob::Changes::Nothing},
         {"saved_bytes", tried ? nlohmann::ordered_json(c.before.floor - c.after.floor) : nlohmann::ordered_json()},
         {"floor_bytes", c.after.floor},
         {"unplanned_peak_bytes", c.after.unplanned_peak},
         {"step_seconds", or_null(c.after.seconds)},
         {"step_seconds_without", or_null(c.before.seconds)},
         {"taken", c.taken},
         {"why_not", c.taken ? nlohmann::ordered_json() : nlohmann::ordered_json(c.why_not)}});
  }
  return all;
}

std::string render(const std::vector<Choice>& choices, std::optional<int> most_columns) {
  const auto seconds = [](const Taken& taken) {
    return taken.seconds ? fmt::format("{:.3f} s", *taken.seconds) : std::string("does not fit");
  };
  std::vector<std::vector<std::string>> rows;
  for (const Choice& c : choices) {
    const bool tried = c.after.floor > 0;
    rows.push_back({std::string(c.knob->name), tried ? format_bytes(c.after.floor) : "",
                    tried ? format_bytes(c.before.floor - c.after.floor) : "", seconds(c.before),
                    tried ? seconds(c.after) : "", c.knob->changes == Knob::Changes::Nothing ? "yes" : "no",
                    c.taken ? "taken" : c.why_not});
  }
  const std::vector<std::string> header = {"choice",    "at the least", "saves", "step without",
                                           "step with", "same bits",    ""};
  return report::render_table("what was chosen", header, rows, most_columns);
}

}  // namespace snug::train
