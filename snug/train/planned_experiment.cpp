#include "snug/train/planned_experiment.h"

#include <fmt/format.h>

#include <utility>

#include "snug/base/clock.h"
#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/process_memory.h"
#include "snug/plan/run/presets.h"
#include "snug/train/training_step.h"

namespace snug::train {

BudgetRequest requested_budget(const std::string& text, const std::optional<plan::PlanFile>& file) {
  const BudgetRequest request = parse_budget(text);
  const bool none = std::holds_alternative<std::monostate>(request);
  return none && file && file->plan.budget > 0 ? BudgetRequest(file->plan.budget) : request;
}

std::optional<plan::Budget> budget_for(const BudgetRequest& request, Bytes unplanned_peak) {
  if (const Bytes* bytes = std::get_if<Bytes>(&request)) return plan::Budget::for_limit(*bytes);
  if (const Percent* percent = std::get_if<Percent>(&request)) {
    return plan::Budget::for_share(percent->value / 100.0, unplanned_peak);
  }
  return std::nullopt;
}

PlannedExperiment plan_experiment(Experiment& experiment, Kinds kinds, const std::optional<plan::PlanFile>& file) {
  const Config& config = experiment.config();
  const BudgetRequest request = requested_budget(config.memory.budget, file);
  const Bytes* bytes = std::get_if<Bytes>(&request);
  if (const Bytes total = memory::machine_memory().total; bytes != nullptr && total > 0 && *bytes > total) {
    throw UsageError(
        fmt::format("budget: {} is more than the {} that this machine has; give less, or leave the budget out",
                    format_bytes(*bytes), format_bytes(total)));
  }
  const auto cap = bytes != nullptr ? std::optional(*bytes) : std::nullopt;
  TrainingStep step(experiment);
  const data::Batch sample = experiment.train_batch(0);
  std::vector<replay::RecordedStep> recorded;
  // Without a budget nothing can be refused, and an evaluation pass has nothing to decide.
  if (kinds == Kinds::Run && !std::holds_alternative<std::monostate>(request)) {
    recorded = step.record_all(sample, cap);
  } else {
    recorded.push_back(step.record(sample, cap));
  }
  if (file) plan::check_is_for(*file, recorded.front().graph);
  PlannedExperiment planned;
  planned.budget = budget_for(request, plan::plan_none(recorded.front().graph).predicted_peak);
  const double started = monotonic_seconds();
  planned.kinds = file ? replay::planned(std::move(recorded), file->plan)
                       : replay::planned(std::move(recorded), config.memory.strategy);
  planned.planning_seconds = monotonic_seconds() - started;
  return planned;
}

Session plan_session(Experiment& experiment, Kinds kinds, const std::optional<plan::PlanFile>& file) {
  PlannedExperiment planned = plan_experiment(experiment, kinds, file);
  return {std::move(planned.kinds), planned.budget, memory::device_memory(c10::kCPU)};
}

}  // namespace snug::train
