#include "snug/train/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "snug/base/clock.h"
#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/planner.h"
#include "snug/plan/presets.h"
#include "snug/train/experiment.h"
#include "snug/train/interrupt.h"
#include "snug/train/trainer.h"

namespace snug::train {
namespace {

/// A row and what it takes to run it.
struct Entry {
  BenchRow row;
  std::optional<Session> session;
  std::vector<double> seconds;
};

plan::Budget budget_of(const std::string& text, Bytes unplanned) {
  const auto budget = budget_for(parse_budget(text), unplanned);
  if (!budget) throw UsageError("bench: a budget is empty; write --budgets as in 40%,60%,400MiB");
  return *budget;
}

std::vector<Entry> make_entries(const replay::RecordedStep& step, const BenchOptions& options, Bytes unplanned,
                                memory::DeviceMemory& memory) {
  std::vector<Entry> entries;
  for (const std::string& strategy : options.strategies) {
    const plan::Planner planner(step.graph, strategy);
    std::vector<std::optional<plan::Budget>> budgets;
    const plan::Strategy kind = plan::strategy_from(strategy);
    if (std::holds_alternative<plan::strategies::Optimal>(kind) ||
        std::holds_alternative<plan::strategies::Eviction>(kind)) {
      for (const std::string& text : options.budgets) budgets.emplace_back(budget_of(text, unplanned));
    } else {
      budgets.emplace_back(std::nullopt);
    }
    for (const auto& budget : budgets) {
      Entry entry;
      entry.row.strategy = strategy;
      if (budget) entry.row.budget = budget->device;
      try {
        const plan::MemoryPlan plan = planner.plan(step.graph, budget);
        entry.row.predicted_peak = plan.predicted_peak;
        entry.row.predicted_seconds = plan.predicted_seconds;
        entry.session.emplace(step, planner, budget, memory);
        memory.set_limit(std::nullopt);
      } catch (const DoesNotFit&) {
        entry.row.fits = false;
        entry.row.predicted_peak = planner.floor(step.graph);
      }
      entries.push_back(std::move(entry));
    }
  }
  return entries;
}

}  // namespace

nlohmann::ordered_json to_json(const BenchResult& result) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const BenchRow& r : result.rows) {
    const auto if_fits = [&](auto value) { return r.fits ? nlohmann::ordered_json(value) : nlohmann::ordered_json(); };
    rows.push_back({{"strategy", r.strategy},
                    {"budget_bytes", r.budget ? nlohmann::ordered_json(*r.budget) : nlohmann::ordered_json()},
                    {"fits", r.fits},
                    {"predicted_peak_bytes", r.predicted_peak},
                    {"measured_peak_bytes", if_fits(r.measured_peak)},
                    {"mapped_peak_bytes", if_fits(r.mapped_peak)},
                    {"predicted_step_seconds", if_fits(r.predicted_seconds)},
                    {"step_seconds_median", if_fits(r.seconds_median)},
                    {"unplanned_step_seconds_median", r.unplanned_seconds_median},
                    {"unplanned_peak_bytes", result.unplanned_peak},
                    {"static_bytes", result.static_bytes},
                    {"replayed_ops", if_fits(r.replayed_ops)}});
  }
  return rows;
}

BenchResult bench(const Config& config, const BenchOptions& options, report::Progress& progress) {
  auto& memory = memory::device_memory(c10::kCPU);
  BenchResult result;
  warm_up(config);
  Experiment experiment(config);
  const data::Batch batch = experiment.train_batch(0);
  const auto forward = [&] { return experiment.loss(batch); };
  const auto forget_gradients = [&] { experiment.optimizer().zero_grad(); };
  progress.note("recording one step");
  const replay::RecordedStep step = replay::record_step(forward, memory);
  result.unplanned_peak = plan::plan_none(step.graph).predicted_peak;
  result.static_bytes = step.graph.static_bytes;
  result.unplanned_seconds_recorded = step.graph.step_seconds;
  std::vector<Entry> entries = make_entries(step, options, result.unplanned_peak, memory);

  std::vector<double> unplanned;
  const auto turn = [&](std::vector<double>& seconds, const std::function<void()>& run) {
    for (std::int64_t i = 0; i <= options.steps && !interrupted(); ++i) {
      const double started = monotonic_seconds();
      run();
      // The first brings its pages in.
      if (i > 0) seconds.push_back(monotonic_seconds() - started);
      forget_gradients();
    }
  };
  for (std::int64_t round = 0; round < options.rounds && !interrupted(); ++round) {
    progress.note(fmt::format("round {} of {}", round + 1, options.rounds));
    turn(unplanned, [&] { forward().backward(); });
    for (Entry& entry : entries) {
      if (!entry.session) continue;
      memory.release_cached();
      memory.set_limit(entry.row.budget);
      memory.reset_peak();
      turn(entry.seconds, [&] { (void)entry.session->backward(forward); });
      entry.row.measured_peak = std::max(entry.row.measured_peak, memory.stats().allocated_peak);
      entry.row.mapped_peak = std::max(entry.row.mapped_peak, memory.stats().mapped_peak);
      entry.row.replayed_ops = entry.session->last_step().replayed_ops;
      memory.set_limit(std::nullopt);
    }
  }
  // Sessions put limits back that the others set; none was there before.
  for (Entry& entry : entries) {
    entry.session.reset();
    memory.set_limit(std::nullopt);
    entry.row.seconds_median = median(entry.seconds);
    entry.row.unplanned_seconds_median = median(unplanned);
    result.rows.push_back(std::move(entry.row));
  }
  return result;
}

}  // namespace snug::train
