#include "snug/train/planned_experiment.h"

#include <fmt/format.h>

#include <utility>

#include "snug/base/clock.h"
#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/process_memory.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/strategy.h"
#include "snug/record/random_state.h"
#include "snug/train/training_step.h"

namespace snug::train {

std::optional<plan::BudgetRequest> requested_budget(const std::optional<plan::BudgetRequest>& asked,
                                                    const std::optional<plan::PlanFile>& file) {
  if (!asked && file && file->plan.budget > 0) return file->plan.budget;
  return asked;
}

namespace {

/// What waits beside the step in a run, as long as this lives; see data::Prefetcher.
class BatchesAhead {
 public:
  BatchesAhead(const Experiment& experiment, const memory::DeviceMemory& memory) {
    const DataConfig& data = experiment.config().data;
    for (std::int64_t i = 0; data.workers > 0 && i < data.prefetch; ++i) {
      batches_.push_back(experiment.train_batch(i));
      for (const at::Tensor* tensor : tensors_of(batches_.back()))
        bytes_ += memory.rounded(static_cast<Bytes>(tensor->nbytes()));
    }
  }
  [[nodiscard]] Bytes bytes() const { return bytes_; }

 private:
  std::vector<data::Batch> batches_;
  Bytes bytes_ = 0;
};

}  // namespace

PlannedExperiment plan_experiment(Experiment& experiment, Kinds kinds, const std::optional<plan::PlanFile>& file) {
  const Config& config = experiment.config();
  const std::optional<plan::BudgetRequest> request = requested_budget(config.memory.budget, file);
  const std::optional<Bytes> cap = plan::limit_of(request);
  if (const Bytes total = experiment.memory().capacity().total; cap && total > 0 && *cap > total) {
    throw UsageError(fmt::format("budget: {} is more than the {} that {} has; give less, or leave the budget out",
                                 format_bytes(*cap), format_bytes(total),
                                 experiment.device().is_cpu() ? "this machine" : experiment.device().str()));
  }
  if (!request && !file &&
      std::holds_alternative<plan::strategies::Eviction>(plan::strategy_from(config.memory.strategy))) {
    throw UsageError(fmt::format(
        "plan: memory.strategy = \"{}\" drops values when a budget runs out, and there is none; give memory.budget",
        config.memory.strategy));
  }
  TrainingStep step(experiment);
  const data::Batch sample = experiment.train_batch(0);
  std::optional<BatchesAhead> ahead;
  if (kinds == Kinds::Run) ahead.emplace(experiment, experiment.memory());
  // Which make_gradients() has beside the step.
  const record::RandomState random = record::save_random_state(experiment.generator());
  std::vector<replay::RecordedStep> recorded;
  // Without a budget nothing can be refused, and an evaluation pass has nothing to decide.
  if (kinds == Kinds::Run && request) {
    recorded = step.record_all(sample, cap);
  } else {
    recorded = step.record(sample, cap);
  }
  for (replay::RecordedStep& kind : recorded) kind.passing.front().beside = ahead ? ahead->bytes() : 0;
  if (file) plan::check_is_for(*file, recorded.front().graph);
  PlannedExperiment planned;
  planned.budget = plan::budget_for(request, plan::plan_none(recorded.front().graph).predicted_peak);
  const double started = monotonic_seconds();
  planned.kinds = file ? replay::planned(std::move(recorded), file->plan)
                       : replay::planned(std::move(recorded), config.memory.strategy);
  planned.window = open_window(experiment, planned.kinds, planned.budget);
  planned.planning_seconds = monotonic_seconds() - started;
  return planned;
}

replay::OpenedWindow open_window(Experiment& experiment, std::vector<replay::PlannedStep>& kinds,
                                 const std::optional<plan::Budget>& budget) {
  if (!experiment.streamed()) return {};
  return replay::open_best_window(*experiment.streamed(), kinds, budget, experiment.memory(),
                                  experiment.config().train.accumulate);
}

Bytes smallest_budget(const std::vector<replay::PlannedStep>& kinds, const replay::OpenedWindow& window) {
  return window.streamed > 0 ? window.floor : replay::smallest_budget(kinds);
}

void let_use(Session& session, const Experiment& experiment) {
  session.use(experiment.tiers());
  if (experiment.config().memory.arena && !session.arena()) session.use_arena();
}

Session session_of(Experiment& experiment, std::vector<replay::PlannedStep> kinds,
                   const std::optional<plan::Budget>& budget) {
  Session session(std::move(kinds), budget, experiment.memory());
  let_use(session, experiment);
  if (experiment.streamed()) session.use(experiment.streamed());
  return session;
}

Session plan_session(Experiment& experiment, Kinds kinds, const std::optional<plan::PlanFile>& file) {
  PlannedExperiment planned = plan_experiment(experiment, kinds, file);
  return session_of(experiment, std::move(planned.kinds), planned.budget);
}

}  // namespace snug::train
