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
#include "snug/report/table.h"
#include "snug/train/experiment.h"
#include "snug/train/interrupt.h"
#include "snug/train/trainer.h"

namespace snug::train {
namespace {

/// A row and what it takes to run it.
struct Entry {
  BenchRow row;
  std::optional<Session> session;
  std::vector<double> seconds, unplanned_seconds, ratios;
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

std::string render(const BenchResult& result, const std::string& title) {
  const auto times = [](double ratio) { return fmt::format("x {:.3f}", ratio); };
  const std::vector<std::string> header = {"strategy",       "budget",        "predicted peak", "measured peak",
                                           "predicted step", "measured step", "replayed"};
  std::vector<std::vector<std::string>> rows;
  std::vector<double> unplanned;
  for (const BenchRow& r : result.rows) {
    const auto percent = [&](Bytes budget) {
      return 100 * static_cast<double>(budget) / static_cast<double>(result.unplanned_peak);
    };
    const std::string budget =
        r.budget ? fmt::format("{} ({:.0f} %)", format_bytes(*r.budget), percent(*r.budget)) : "none";
    if (!r.fits) {
      rows.push_back({r.strategy, budget, "needs " + format_bytes(r.predicted_peak), "", "", "", ""});
      continue;
    }
    unplanned.push_back(r.unplanned_seconds_median);
    rows.push_back({r.strategy, budget, format_bytes(r.predicted_peak), format_bytes(r.measured_peak),
                    r.predicted_seconds > 0 ? times(r.predicted_seconds / result.unplanned_seconds_recorded) : "",
                    fmt::format("{:.3f} s, {}", r.seconds_median, times(r.ratio_median)),
                    fmt::format("{}", r.replayed_ops)});
  }
  return report::render_table(
      fmt::format("{}: unplanned {}, {:.3f} s", title, format_bytes(result.unplanned_peak), median(unplanned)), header,
      rows);
}

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
                    {"unplanned_step_seconds_median", if_fits(r.unplanned_seconds_median)},
                    {"ratio_median", if_fits(r.ratio_median)},
                    {"unplanned_step_seconds_recorded", result.unplanned_seconds_recorded},
                    {"unplanned_peak_bytes", result.unplanned_peak},
                    {"static_bytes", result.static_bytes},
                    {"replayed_ops", if_fits(r.replayed_ops)}});
  }
  return rows;
}

BenchResult bench(const replay::Forward& forward, const std::function<void()>& forget_gradients,
                  const BenchOptions& options, report::Progress& progress) {
  auto& memory = memory::device_memory(c10::kCPU);
  BenchResult result;
  progress.note("recording one step");
  const replay::RecordedStep step = replay::record_step(forward, memory);
  result.unplanned_peak = plan::plan_none(step.graph).predicted_peak;
  result.static_bytes = step.graph.static_bytes;
  result.unplanned_seconds_recorded = step.graph.step_seconds;
  std::vector<Entry> entries = make_entries(step, options, result.unplanned_peak, memory);

  const auto turn = [&](std::vector<double>& seconds, const std::function<void()>& run) {
    std::vector<double> these;
    for (std::int64_t i = 0; i <= options.steps && !interrupted(); ++i) {
      const double started = monotonic_seconds();
      run();
      // The first brings its pages in.
      if (i > 0) these.push_back(monotonic_seconds() - started);
      forget_gradients();
    }
    seconds.insert(seconds.end(), these.begin(), these.end());
    return median(these);
  };
  for (std::int64_t round = 0; round < options.rounds && !interrupted(); ++round) {
    progress.note(fmt::format("round {} of {}", round + 1, options.rounds));
    for (Entry& entry : entries) {
      if (!entry.session) continue;
      // Beside each other: machines change their speed within a round.
      const double unplanned = turn(entry.unplanned_seconds, [&] { forward().backward(); });
      memory.release_cached();
      memory.set_limit(entry.row.budget);
      memory.reset_peak();
      const double planned = turn(entry.seconds, [&] { (void)entry.session->backward(forward); });
      if (unplanned > 0) entry.ratios.push_back(planned / unplanned);
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
    entry.row.unplanned_seconds_median = median(entry.unplanned_seconds);
    entry.row.ratio_median = median(entry.ratios);
    result.rows.push_back(std::move(entry.row));
  }
  return result;
}

BenchResult bench(const Config& config, const BenchOptions& options, report::Progress& progress) {
  warm_up(config);
  Experiment experiment(config);
  const data::Batch batch = experiment.train_batch(0);
  return bench([&] { return experiment.loss(batch); }, [&] { experiment.optimizer().zero_grad(); }, options, progress);
}

}  // namespace snug::train
