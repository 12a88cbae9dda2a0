#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "snug/plan/bound/lower_bound.h"
#include "snug/plan/run/explanation.h"
#include "snug/replay/planned_step.h"
#include "snug/replay/window_choice.h"
#include "snug/train/choose.h"

namespace snug::cli {

/// A plan and what is said about it.
struct PlanReport {
  std::string device;  ///< that is described; empty: steps run here
  plan::StepGraph graph;
  plan::MemoryPlan plan;
  Bytes floor = 0;  ///< the smallest budget
  plan::LowerBound bound;
  double gap = 0;
  Bytes highest_peak = 0;  ///< of the plans of all kinds of steps: each micro-batch's, and evaluation's
  double planning_seconds = 0;
  std::int64_t micro_batches = 1;  ///< of a step; times are of one that adds to gradients
  double whole_step_seconds = 0;   ///< of all of them and the update, and waiting for streamed weights
  replay::OpenedWindow window;     ///< of those
  std::vector<train::Choice> choices;
};

/// Of the first of all kinds of steps.
PlanReport report_on(std::vector<replay::PlannedStep> kinds, std::optional<plan::Budget> budget,
                     double planning_seconds, std::int64_t micro_batches = 1, const replay::OpenedWindow& window = {});

nlohmann::ordered_json to_json(const PlanReport& r, const plan::Explanation& why, bool with_explanation);
/// The tables for a terminal.
void print(const PlanReport& r, const plan::Explanation& why, bool with_explanation);

}  // namespace snug::cli
