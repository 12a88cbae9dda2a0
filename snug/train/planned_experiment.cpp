#include "snug/train/planned_experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "snug/base/clock.h"
#include "snug/base/errors.h"
#include "snug/described/described_device.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/tiers.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/strategy.h"
#include "snug/record/random_state.h"
#include "snug/replay/agreed_recording.h"
#include "snug/replay/agreement.h"
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

/// Keys of memory that no plan of this configuration would follow.
void refuse_what_does_nothing(const Config& config, bool has_budget) {
  const MemoryConfig& memory = config.memory;
  const auto refuse = [](const std::string& key, std::string_view why) {
    throw UsageError(fmt::format("plan: {} does nothing here: {}", key, why));
  };
  const bool plans_nothing = !has_budget && memory.strategy == MemoryConfig().strategy;
  constexpr std::string_view kGive = "a plan is for a budget, and there is none; give memory.budget, or leave it out";
  if (!has_budget && std::holds_alternative<plan::strategies::Eviction>(plan::strategy_from(memory.strategy))) {
    throw UsageError(fmt::format(
        "plan: memory.strategy = \"{}\" drops values when a budget runs out, and there is none; give memory.budget",
        memory.strategy));
  }
  if (memory.activations != Activations::Exact && !has_budget)
    refuse(fmt::format("memory.activations = \"{}\"", word(memory.activations)), kGive);
  const bool may_stream = memory.weights == KeptIn::Streamed || memory.optimizer == KeptIn::Streamed ||
                          memory.allow.find("streamed_weights") != std::string::npos;
  const bool moves = may_stream || plan::may_move(memory.strategy);
  for (const auto& [key, budget] :
       {std::pair("memory.host_budget", memory.host_budget), std::pair("memory.disk_budget", memory.disk_budget)}) {
    if (!budget) continue;
    if (plans_nothing) refuse(key, kGive);
    if (!moves)
      refuse(key, fmt::format("memory.strategy = \"{}\" moves nothing; leave one of them out", memory.strategy));
  }
  if (memory.verify_replay_every > 0 && !has_budget && !plan::drops_without_budget(memory.strategy))
    refuse("memory.verify_replay_every", "nothing is made again without a budget; give memory.budget, or leave it out");
}

}  // namespace

void check_machine_has(std::optional<Bytes> budget, const Config& config, const memory::DeviceMemory& memory) {
  if (const Bytes total = memory.capacity().total; budget && total > 0 && *budget > total) {
    const std::string whose = memory.device().is_cpu() ? "this machine" : memory.model();
    throw UsageError(fmt::format("budget: {} is more than the {} that {} has; give less, or leave it out",
                                 format_bytes(*budget), format_bytes(total),
                                 whose.empty() ? memory.device().str() : whose));
  }
  const memory::Tiers checked(
      {.host = plan::limit_of(config.memory.host_budget), .disk = plan::limit_of(config.memory.disk_budget)});
}

PlannedExperiment plan_experiment(Experiment& experiment, Kinds kinds, const std::optional<plan::PlanFile>& file) {
  const Config& config = experiment.config();
  const std::optional<plan::BudgetRequest> request = requested_budget(config.memory.budget, file);
  const std::optional<Bytes> cap = plan::limit_of(request);
  check_machine_has(cap, config, experiment.memory());
  if (!file) refuse_what_does_nothing(config, request.has_value());
  TrainingStep step(experiment);
  const data::Batch sample = experiment.train_batch(0);
  std::optional<BatchesAhead> ahead;
  if (kinds == Kinds::Run) ahead.emplace(experiment, experiment.memory());
  // Which make_gradients() has beside the step.
  const record::RandomState random = record::save_random_state(experiment.generator());
  std::vector<replay::RecordedStep> recorded;
  // On a device that is not here the step is recorded whole, so that what it needs is known where it does not fit.
  const bool is_whole = experiment.memory().device().type() == described::kDescribed && !experiment.streamed();
  const std::optional<Bytes> record_within = is_whole ? std::nullopt : cap;
  // Without a budget nothing can be refused, and an evaluation pass has nothing to decide. All record the same.
  const std::vector<double> have_budgets = experiment.team().gather({request ? 1.0 : 0.0});
  if (kinds == Kinds::Run && std::ranges::count(have_budgets, 1.0) > 0) {
    recorded = step.record_all(sample, record_within);
  } else {
    recorded = step.record(sample, record_within);
  }
  for (replay::RecordedStep& kind : recorded) kind.passing.front().beside += ahead ? ahead->bytes() : 0;
  replay::agree_on(recorded, *experiment.team().agreement());
  // The others wait for this process's word on it.
  return replay::or_tell(*experiment.team().agreement(), [&] {
    if (file) plan::check_is_for(*file, recorded.front().graph);
    PlannedExperiment planned;
    const double started = monotonic_seconds();
    planned.kinds = file ? replay::planned(std::move(recorded), file->plan)
                         : replay::planned(std::move(recorded), config.memory.strategy, *experiment.team().agreement());
    planned.budget = plan::budget_for(request, replay::unplanned_peak(planned.kinds));
    if (!cap && planned.budget) check_machine_has(planned.budget->limit, config, experiment.memory());
    planned.window = open_window(experiment, planned.kinds, planned.budget);
    planned.planning_seconds = monotonic_seconds() - started;
    return planned;
  });
}

replay::OpenedWindow open_window(Experiment& experiment, std::vector<replay::PlannedStep>& kinds,
                                 const std::optional<plan::Budget>& budget) {
  return replay::open_best_window(experiment.streamed().get(), kinds, budget, experiment.memory(),
                                  experiment.config().train.accumulate, *experiment.team().agreement());
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
  Session session(std::move(kinds), budget, experiment.memory(), experiment.team().agreement());
  let_use(session, experiment);
  if (experiment.streamed()) session.use(experiment.streamed());
  return session;
}

Session plan_session(Experiment& experiment, Kinds kinds, const std::optional<plan::PlanFile>& file) {
  PlannedExperiment planned = plan_experiment(experiment, kinds, file);
  return session_of(experiment, std::move(planned.kinds), planned.budget);
}

}  // namespace snug::train
