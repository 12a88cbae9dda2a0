#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "snug/plan/budget_request.h"
#include "snug/plan/plan_file.h"
#include "snug/replay/planned_step.h"
#include "snug/replay/session.h"
#include "snug/replay/window_choice.h"
#include "snug/train/experiment.h"

namespace snug::train {

/// What is asked for; when that is nothing, the budget that a plan file was made for.
std::optional<plan::BudgetRequest> requested_budget(const std::optional<plan::BudgetRequest>& asked,
                                                    const std::optional<plan::PlanFile>& file);

/// What is recorded of an experiment.
enum class Kinds : std::uint8_t {
  Training,  ///< the training step
  Run        ///< all that a run has: the evaluation pass too, when it validates, beside batches that are made ahead
};

/// Steps of an experiment, recorded, and all that it takes to plan them.
struct PlannedExperiment {
  std::vector<replay::PlannedStep> kinds;  ///< the training step first
  std::optional<plan::Budget> budget;      ///< that the configuration asks for
  double planning_seconds = 0;             ///< the search, without recording
  replay::OpenedWindow window;             ///< of weights that are streamed
};

/// Throws UsageError where the device, or the machine whose memory plans move to, has less than the budgets for it.
void check_machine_has(std::optional<Bytes> budget, const Config& config, const memory::DeviceMemory& memory);

/// Records and prepares plans. A budget in bytes caps the recording too; one in percent is of the unplanned peak of the
/// training step, which takes an uncapped recording to know; without one nothing is capped. `file`: a plan to use in
/// place of the configured strategy; its budget holds when the configuration has none. Throws UsageError when it is for
/// another step, and for "eviction" without a budget; DoesNotFit when a step does not even run under the budget with
/// eviction.
PlannedExperiment plan_experiment(Experiment& experiment, Kinds kinds, const std::optional<plan::PlanFile>& file = {});

/// The smallest budget that all of these have plans for, with whatever window.
Bytes smallest_budget(const std::vector<replay::PlannedStep>& kinds, const replay::OpenedWindow& window);

/// Opens the window of the experiment's streamed weights, where there are any, for its steps, whose graphs count it
/// from here on. Throws DoesNotFit.
replay::OpenedWindow open_window(Experiment& experiment, std::vector<replay::PlannedStep>& kinds,
                                 const std::optional<plan::Budget>& budget);

/// What the configuration gives a session's steps beside a plan: tiers, and an arena.
void let_use(Session& session, const Experiment& experiment);

/// A session for these steps of the experiment. Throws DoesNotFit.
Session session_of(Experiment& experiment, std::vector<replay::PlannedStep> kinds,
                   const std::optional<plan::Budget>& budget);

/// The session of plan_experiment(). Throws DoesNotFit.
Session plan_session(Experiment& experiment, Kinds kinds, const std::optional<plan::PlanFile>& file = {});

}  // namespace snug::train
