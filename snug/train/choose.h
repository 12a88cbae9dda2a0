#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/plan/does_not_fit.h"
#include "snug/report/progress.h"
#include "snug/train/knobs.h"

namespace snug::train {

/// What a configuration takes, recorded and planned.
struct Taken {
  Bytes floor = 0;                ///< the smallest budget; where not even a recording fits, at least so much
  Bytes unplanned_peak = 0;       ///< 0 where it could not be recorded
  double unplanned_seconds = 0;   ///< of a step with its update
  std::optional<double> seconds;  ///< the same, predicted within the budget; none where no plan fits
};

/// A knob that was tried.
struct Choice {
  const Knob* knob = nullptr;
  Taken before, after;  ///< beside those that had been taken before
  bool taken = false;
  std::string why_not;  ///< where it was not
};

/// What was found.
struct Chosen {
  Config config;                ///< with the knobs that were taken, and the budget in bytes
  std::vector<Choice> choices;  ///< in the order in which they were tried; empty where nothing was to be chosen
};

/// Takes knobs, one after the other, until nothing makes the step faster within the budget: those that change no bit,
/// and those that memory.allow names. Each is recorded with the step as it would be, so that this takes a few steps'
/// time for each. Without a budget, and where memory.allow is empty and no other knob applies, the configuration is
/// returned as it is. Needs warm_up(). Throws what the experiment and its recording do, but DoesNotFit.
Chosen choose(const Config& config, report::Progress& progress);

/// The same refusal with the cheapest change that memory.allow does not name yet and with which a plan fits, where
/// there is one that does not make gradients less exact. What was refused must be gone: each change is recorded.
DoesNotFit with_cheapest_change(const DoesNotFit& refusal, const Config& config, report::Progress& progress);

/// The choices of a run that a state is of, for it to go on with; keys that were set by name, to what no choice leads
/// from, stay. What changes no bit is left where it does not apply any more, as to clipping by norm or detecting
/// anomalies. A budget in percent is of the configured step, which is recorded then. Needs warm_up().
Config adopt_choices(const Config& config, const Config& before);

nlohmann::ordered_json to_json(const std::vector<Choice>& choices);
/// As a table for a terminal.
std::string render(const std::vector<Choice>& choices, std::optional<int> most_columns = {});

}  // namespace snug::train
