#include "snug/train/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "snug/base/errors.h"
#include "snug/memory/device_clock.h"
#include "snug/memory/device_memory.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/run/presets.h"
#include "snug/record/random_state.h"
#include "snug/replay/planned_step.h"
#include "snug/report/budget_text.h"
#include "snug/report/table.h"
#include "snug/train/choose.h"
#include "snug/train/experiment.h"
#include "snug/train/interrupt.h"
#include "snug/train/planned_experiment.h"
#include "snug/train/train_result.h"
#include "snug/train/training_step.h"
#include "snug/train/whole_step.h"

namespace snug::train {
namespace {

/// A row and what it takes to run it.
struct Entry {
  BenchRow row;
  std::optional<Session> session;
  std::vector<double> seconds, unplanned_seconds, ratios;
};

/// What is asked for, read.
struct Request {
  std::string strategy;
  std::vector<std::optional<plan::BudgetRequest>> budgets;  ///< one of none, where the strategy takes none
};

std::vector<Request> read(const BenchOptions& options) {
  std::vector<Request> requests;
  for (const std::string& text : options.strategies) {
    const plan::Strategy strategy = plan::strategy_from(text);
    const bool takes_budgets = std::holds_alternative<plan::strategies::Optimal>(strategy) ||
                               std::holds_alternative<plan::strategies::Eviction>(strategy);
    Request& request = requests.emplace_back(Request{.strategy = text, .budgets = {}});
    if (takes_budgets) {
      request.budgets.assign(options.budgets.begin(), options.budgets.end());
    } else {
      request.budgets.emplace_back(std::nullopt);
    }
  }
  return requests;
}

std::vector<Entry> make_entries(const std::vector<replay::RecordedStep>& kinds, const std::vector<Request>& requests,
                                Bytes unplanned, std::int64_t parts, memory::DeviceMemory& memory) {
  std::vector<Entry> entries;
  for (const auto& [strategy, budgets] : requests) {
    const std::vector<replay::PlannedStep> planned = replay::planned(kinds, strategy);
    for (const std::optional<plan::BudgetRequest>& request : budgets) {
      if (interrupted()) return entries;
      const std::optional<plan::Budget> budget = plan::budget_for(request, unplanned);
      Entry entry;
      entry.row.strategy = strategy;
      if (budget) entry.row.budget = budget->limit;
      try {
        const std::vector<plan::MemoryPlan> plans = replay::plan_all(planned, budget);
        entry.row.predicted_peak = replay::highest_peak(plans);
        entry.row.predicted_seconds =
            whole_step_seconds(planned, parts, [&](std::size_t i) { return plans[i].predicted_seconds; });
        entry.session.emplace(planned, budget, memory);
        memory.set_limit(std::nullopt);
      } catch (const DoesNotFit&) {
        entry.row.fits = false;
        entry.row.predicted_peak = replay::smallest_budget(planned);
      }
      entries.push_back(std::move(entry));
    }
  }
  return entries;
}

}  // namespace

std::string render(const BenchResult& result, const std::string& title, std::optional<int> most_columns) {
  const auto times = [](double ratio) { return fmt::format("x {:.3f}", ratio); };
  const std::vector<std::string> header = {"strategy",       "budget",        "predicted peak", "measured peak",
                                           "predicted step", "measured step", "replayed"};
  std::vector<std::vector<std::string>> rows;
  std::vector<double> unplanned;
  for (const BenchRow& r : result.rows) {
    const std::string budget = r.budget ? report::budget_text(*r.budget, result.unplanned_peak) : "none";
    if (!r.fits) {
      rows.push_back({r.strategy, budget, "needs " + format_bytes(r.predicted_peak), "", "", "", ""});
      continue;
    }
    const std::string predicted_step =
        r.predicted_seconds > 0 ? times(r.predicted_seconds / result.unplanned_seconds_recorded) : "";
    if (r.turns == 0) {
      rows.push_back({r.strategy, budget, format_bytes(r.predicted_peak), "", predicted_step, "", ""});
      continue;
    }
    unplanned.push_back(r.unplanned_seconds_median);
    rows.push_back({r.strategy, budget, format_bytes(r.predicted_peak), format_bytes(r.measured_peak), predicted_step,
                    fmt::format("{:.3f} s, {}", r.seconds_median, times(r.ratio_median)),
                    fmt::format("{}", r.replayed_ops)});
  }
  return report::render_table(
      fmt::format("{}{}: unplanned {}, {:.3f} s", title, result.complete ? "" : ", stopped before its end",
                  format_bytes(result.unplanned_peak), median(unplanned)),
      header, rows, most_columns);
}

nlohmann::ordered_json to_json(const BenchResult& result) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const BenchRow& r : result.rows) {
    const auto when = [](bool known, auto value) {
      return known ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
    };
    const auto if_measured = [&](auto value) { return when(r.turns > 0, value); };
    rows.push_back({{"strategy", r.strategy},
                    {"budget_bytes", r.budget ? nlohmann::ordered_json(*r.budget) : nlohmann::ordered_json()},
                    {"fits", r.fits},
                    {"predicted_peak_bytes", r.predicted_peak},
                    {"measured_peak_bytes", if_measured(r.measured_peak)},
                    {"mapped_peak_bytes", if_measured(r.mapped_peak)},
                    {"predicted_step_seconds", when(r.fits, r.predicted_seconds)},
                    {"step_seconds_median", if_measured(r.seconds_median)},
                    {"unplanned_step_seconds_median", if_measured(r.unplanned_seconds_median)},
                    {"ratio_median", if_measured(r.ratio_median)},
                    {"unplanned_step_seconds_recorded", result.unplanned_seconds_recorded},
                    {"unplanned_peak_bytes", result.unplanned_peak},
                    {"static_bytes", result.static_bytes},
                    {"replayed_ops", if_measured(r.replayed_ops)}});
  }
  return {{"measurements", std::move(rows)}, {"complete", result.complete}};
}

BenchStep bench_step(const replay::Forward& forward, std::function<void()> forget_gradients, c10::Device device) {
  return {.record =
              [forward, device] {
                std::vector<replay::RecordedStep> kinds;
                kinds.push_back(replay::record_step(forward, memory::device_memory(device)));
                return kinds;
              },
          .plain = [forward] { (void)run_plain(forward); },
          .planned =
              [forward](Session& session) {
                (void)session.backward(forward);
                return session.last_step().replayed_ops;
              },
          .forget_gradients = std::move(forget_gradients),
          .device = device};
}

BenchResult bench(const BenchStep& step, const BenchOptions& options, report::Progress& progress) {
  const std::vector<Request> requests = read(options);
  memory::DeviceMemory& memory = memory::device_memory(step.device);
  BenchResult result;
  const auto stopped = [&] {
    if (interrupted()) result.complete = false;
    return !result.complete;
  };
  progress.note("recording one step");
  std::vector<replay::RecordedStep> recorded;
  try {
    recorded = step.record();
  } catch (const Stopped&) {
    result.complete = false;
    return result;
  }
  const plan::StepGraph& graph = recorded.front().graph;
  result.unplanned_peak = plan::plan_none(graph).predicted_peak;
  result.static_bytes = graph.static_bytes;
  result.unplanned_seconds_recorded =
      whole_step_seconds(recorded, step.micro_batches, [&](std::size_t i) { return recorded[i].graph.step_seconds; });
  std::vector<Entry> entries = make_entries(recorded, requests, result.unplanned_peak, step.micro_batches, memory);

  const auto turn = [&](const std::function<void()>& run) {
    std::vector<double> seconds;
    for (std::int64_t i = 0; i <= options.steps && !stopped(); ++i) {
      const double started = memory::seconds_when_done(memory.device());
      run();
      // The first brings its pages in.
      if (i > 0) seconds.push_back(memory::seconds_when_done(memory.device()) - started);
      if (step.update) (void)step.update.run();
      step.forget_gradients();
    }
    return seconds;
  };
  const auto append = [](std::vector<double>& all, const std::vector<double>& these) {
    all.insert(all.end(), these.begin(), these.end());
  };
  for (std::int64_t round = 0; round < options.rounds && !stopped(); ++round) {
    progress.note(fmt::format("round {} of {}", round + 1, options.rounds));
    for (Entry& entry : entries) {
      if (!entry.session) continue;
      // Beside each other: machines change their speed within a round.
      const std::vector<double> unplanned = turn(step.plain);
      memory.release_cached();
      memory.set_limit(entry.row.budget);
      memory.reset_peak();
      const std::vector<double> planned = turn([&] { entry.row.replayed_ops = step.planned(*entry.session); });
      memory.set_limit(std::nullopt);
      if (stopped()) break;  // a turn that was cut short does not count
      append(entry.unplanned_seconds, unplanned);
      append(entry.seconds, planned);
      if (median(unplanned) > 0) entry.ratios.push_back(median(planned) / median(unplanned));
      ++entry.row.turns;
      entry.row.measured_peak = std::max(entry.row.measured_peak, memory.stats().allocated_peak);
      entry.row.mapped_peak = std::max(entry.row.mapped_peak, memory.stats().mapped_peak);
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
  (void)read(options);  // what cannot be read is refused before anything is made
  warm_up(config);
  Config resident = config;
  if (config.memory.budget) resident.given.insert("memory.weights");  // nobody chooses that here
  Experiment experiment(choose(resident, progress).config);
  if (experiment.streamed()) {
    throw UsageError(
        "bench: memory.weights = \"streamed\", or memory.optimizer, has the plain step, too, wait for what is "
        "streamed; set "
        "it to \"device\", and leave streamed_weights out of memory.allow, or compare the times of two runs of train");
  }
  const data::Batch batch = experiment.train_batch(0);
  TrainingStep step(experiment);
  // Which TrainingStep::make_gradients() has beside the step, so that a budget does for both or for none.
  const record::RandomState random = record::save_random_state(experiment.generator());
  return bench({.record = [&] { return step.record(batch, std::nullopt); },
                .plain = [&] { (void)step.backward_plain(batch, 0); },
                .planned =
                    [&](Session& session) {
                      let_use(session, experiment);
                      (void)step.backward(session, batch, 0);
                      return step.last().replayed_ops;
                    },
                .forget_gradients = [&] { step.forget_gradients(); },
                .update = step.rehearsal(),
                .micro_batches = experiment.config().train.accumulate,
                .device = experiment.device()},
               options, progress);
}

}  // namespace snug::train
