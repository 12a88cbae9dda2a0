#include "snug/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "snug/base/clock.h"
#include "snug/base/errors.h"
#include "snug/base/folder_lock.h"
#include "snug/data/prefetcher.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/process_memory.h"
#include "snug/record/random_state.h"
#include "snug/replay/anomaly.h"
#include "snug/report/count.h"
#include "snug/report/metrics.h"
#include "snug/train/experiment.h"
#include "snug/train/interrupt.h"
#include "snug/train/run_state.h"

namespace snug::train {
namespace {

std::int64_t count(const std::vector<at::Tensor>& tensors) {
  std::int64_t count = 0;
  for (const at::Tensor& t : tensors) count += t.numel();
  return count;
}

/// What the budget leaves beside a plan: room for a copy of what is saved. Everything, without a budget.
Bytes room_beside(const plan::MemoryPlan& plan) {
  if (plan.budget == 0) return std::numeric_limits<Bytes>::max();
  return std::max<Bytes>(plan.budget - plan.predicted_peak - plan::Budget::for_limit(plan.budget).reserve, 0);
}

/// For the whole run: two in one folder would remove each other's states.
std::optional<FolderLock> lock(const std::filesystem::path& folder) {
  if (folder.empty()) return std::nullopt;
  try {
    std::filesystem::create_directories(folder);
    auto taken = FolderLock::take(folder);
    if (!taken) {
      throw UsageError(
          fmt::format("train: another run writes to {}; wait for it, or use another output.folder", folder.string()));
    }
    return taken;
  } catch (const std::system_error& error) {
    throw Error(fmt::format("train: {}: {}", folder.string(), error.code().message()));
  }
}

[[noreturn]] void refuse_loss(Experiment& experiment, const data::Batch& batch, std::int64_t step, double loss,
                              const std::optional<record::RandomState>& random) {
  std::string cause = "train.detect_anomaly = true names the operator that made it";
  if (random) {
    const record::RandomStateScope as_then(*random);
    const auto found = replay::first_non_finite([&] { return experiment.loss(batch); });
    cause = found ? "the first operator with a non-finite output is " + *found
                  : "running the step again gave finite values";
  }
  throw Error(fmt::format("train: the loss of step {} is {}; {}; a lower optimizer.learning_rate often helps", step,
                          loss, cause));
}

/// The weights are still those that the step began with.
[[noreturn]] void refuse_gradients(Experiment& experiment, Session& session, const data::Batch& batch,
                                   std::int64_t step, double norm, const std::optional<record::RandomState>& random) {
  std::string cause = "train.detect_anomaly = true names the operator that made it";
  if (random) {
    cause = "running the step again gave finite gradients";
    experiment.optimizer().zero_grad();
    session.detect_anomalies(true);
    const record::RandomStateScope as_then(*random);
    try {
      session.backward([&] { return experiment.loss(batch); });
    } catch (const Error& error) {
      cause = error.what();
    }
  }
  throw Error(
      fmt::format("train: the norm of the gradients of step {} is {}; {}; a lower optimizer.learning_rate often "
                  "helps",
                  step, norm, cause));
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

nlohmann::ordered_json plan_figures(const plan::MemoryPlan& plan, const memory::Stats& memory) {
  return {{"strategy", plan.strategy},
          {"budget_bytes", plan.budget > 0 ? nlohmann::ordered_json(plan.budget) : nlohmann::ordered_json()},
          {"predicted_peak_bytes", plan.predicted_peak},
          {"measured_peak_bytes", memory.allocated_peak},
          {"mapped_peak_bytes", memory.mapped_peak},
          {"unplanned_peak_bytes", plan.unplanned_peak}};
}

nlohmann::ordered_json to_json(const TrainResult& r) {
  nlohmann::ordered_json by_tag;
  for (std::size_t i = 0; i < memory::kTags; ++i)
    by_tag[std::string(memory::kTagNames[i])] = r.memory.at_peak_by_tag[i];
  const auto or_null = [](const auto& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json json = {{"steps", r.steps},
                                 {"parameters", r.parameters},
                                 {"trained_parameters", r.trained_parameters},
                                 {"tokens_per_second", r.tokens_per_second},
                                 {"step_seconds_median", r.step_seconds_median},
                                 {"loss_first", r.loss_first},
                                 {"loss_last", r.loss_last},
                                 {"validation_loss", or_null(r.validation_loss)},
                                 {"peak_by_tag", by_tag},
                                 {"resident_start_bytes", r.resident_start},
                                 {"resident_peak_bytes", r.resident_peak},
                                 {"replayed_ops", r.replayed_ops},
                                 {"evictions", r.evictions},
                                 {"interrupted", r.interrupted},
                                 {"resumed_from", r.resumed_from},
                                 {"states_saved", r.states_saved}};
  json.update(plan_figures(r.plan, r.memory));
  return json;
}

TrainResult train(const Config& config, report::Progress& progress, const TrainOptions& options) {
  const std::optional<plan::PlanFile>& file = options.plan;
  auto& memory = memory::device_memory(c10::kCPU);
  TrainResult result;
  warm_up(config);
  result.resident_start = memory::process_memory().resident;
  if (options.start == Start::Resume && config.output.folder.empty()) {
    throw UsageError("train: resuming needs output.folder, where the training state is");
  }
  const std::filesystem::path folder = config.output.folder;
  const std::optional<FolderLock> alone = lock(folder);
  Experiment experiment(config);
  RunState state(experiment, folder / "state");
  if (options.start == Start::Resume) {
    const auto done = state.find(progress);
    result.resumed_from = result.steps = done.value_or(0);
    progress.note(done ? fmt::format("resuming after {} steps", *done)
                       : fmt::format("no training state in {}; beginning at the first step", state.folder().string()));
    if (result.steps > config.train.steps) {
      throw UsageError(
          fmt::format("train: the state in {} is of {} steps, and train.steps = {} are to be done in all; set "
                      "it to {} or more, or use another output.folder",
                      state.folder().string(), result.steps, config.train.steps, result.steps));
    }
  }
  result.parameters = count(experiment.model().parameters());
  result.trained_parameters = count(experiment.optimizer().parameters());
  if (options.before) options.before(experiment);
  progress.note(fmt::format("{} parameters{}; recording one step", report::format_count(result.parameters),
                            result.trained_parameters == result.parameters
                                ? ""
                                : fmt::format(", {} of them train", report::format_count(result.trained_parameters))));

  const BudgetRequest request = parse_budget(config.memory.budget);
  const bool of_the_file = std::holds_alternative<std::monostate>(request) && file && file->plan.budget > 0;
  const bool capped_from_the_start = std::holds_alternative<Bytes>(request) || of_the_file;
  Session session = plan_session(experiment, file);
  // Only now: what cannot be planned, or is stopped before, leaves the run before as it was.
  const bool writes = !folder.empty() && !interrupted();
  if (options.start == Start::Anew && writes) state.begin_anew(progress);
  state.restore();
  std::optional<report::MetricsWriter> metrics;
  std::optional<std::string> metrics_failure;
  const auto write_metrics = [&](const nlohmann::ordered_json& line) {
    try {
      if (metrics) metrics->write(line);
    } catch (const Error& error) {  // no reason to lose a run
      progress.note(error.what());
      metrics_failure = error.what();
      metrics.reset();
    }
  };
  if (writes) {
    using Existing = report::MetricsWriter::Existing;
    metrics.emplace(folder / "metrics.jsonl", result.resumed_from > 0 ? Existing::Append : Existing::Replace);
    write_metrics({{"config", to_json(config)}, {"parameters", result.parameters}});
  }
  // A budget in percent needs an uncapped recording: what that took does not count.
  if (!capped_from_the_start) {
    memory.release_cached();
    memory.reset_peak();
  }
  const auto describe_plan = [&] {
    const plan::MemoryPlan& p = session.plan();
    return fmt::format("plan \"{}\": {} operators, unplanned peak {}, predicted peak {}{}", p.strategy,
                       session.graph().ops.size(), format_bytes(p.unplanned_peak), format_bytes(p.predicted_peak),
                       p.budget > 0 ? ", budget " + format_bytes(p.budget) : std::string());
  };
  progress.note(describe_plan());

  const VerifyReplay verify_by =
      config.memory.verify_replay_by == VerifyBy::Values ? VerifyReplay::Values : VerifyReplay::Hashes;
  data::Prefetcher<data::Batch> batches([&](std::int64_t step) { return experiment.train_batch(step); },
                                        {.workers = static_cast<int>(config.data.workers),
                                         .depth = config.data.prefetch,
                                         .first_step = result.resumed_from,
                                         .pinned = false});
  std::int64_t saved_at = result.resumed_from;
  std::optional<double> validated;  // after the last step
  const auto save = [&] {
    saved_at = result.steps;
    // Of now: a session plans anew when a step or the memory around it changes.
    const std::string plan = to_json(plan::plan_file_for(session.graph(), session.plan())).dump() + "\n";
    state.save(result.steps, validated, plan, room_beside(session.plan()), progress);
  };
  // Who sends a signal may not wait for a validation.
  const auto save_if_stopped = [&] {
    if (interrupted() && !folder.empty() && result.steps > saved_at) save();
  };
  std::vector<double> seconds;
  bool said_so = false;
  const double started = monotonic_seconds();
  for (std::int64_t step = result.resumed_from; step < config.train.steps && !interrupted(); ++step) {
    const double step_started = monotonic_seconds();
    const data::Batch batch = batches.next();
    const record::RandomState random = record::save_random_state(record::default_generator(c10::Device(c10::kCPU)));
    const auto again = config.train.detect_anomaly ? std::optional(random) : std::nullopt;
    const std::int64_t every = config.memory.verify_replay_every;
    session.verify_replays(every > 0 && step % every == 0 ? verify_by : VerifyReplay::Off);
    double loss = 0, norm = 0;
    try {
      loss = session.backward([&] { return experiment.loss(batch); }).item<double>();
      if (!std::isfinite(loss)) refuse_loss(experiment, batch, step, loss, again);
      norm = experiment.clip_gradients();
      if (!std::isfinite(norm)) refuse_gradients(experiment, session, batch, step, norm, again);
    } catch (...) {
      // The weights are those of the step before: what has been trained is not lost.
      record::restore(random);
      try {
        if (!folder.empty() && result.steps > saved_at) save();
      } catch (const std::exception& unsaved) {
        progress.note(fmt::format("the training state could not be saved: {}", unsaved.what()));
      }
      throw;
    }
    experiment.apply_gradients(step);
    seconds.push_back(monotonic_seconds() - step_started);

    if (!state.loss_first) state.loss_first = loss;
    state.loss_last = loss;
    result.steps = step + 1;
    const Session::StepReport& report = session.last_step();
    result.replayed_ops = report.replayed_ops;
    result.evictions += report.evictions;
    if (!report.followed_plan && !std::exchange(said_so, true))
      progress.note(fmt::format("step {}: not the planned step, run under pressure ({})", step, report.divergence));
    const bool last = step + 1 == config.train.steps || interrupted();
    const bool validates = last || (config.train.validate_every > 0 && (step + 1) % config.train.validate_every == 0);
    validated.reset();
    save_if_stopped();
    if (validates) validated = experiment.validation_loss(save_if_stopped);
    if (validates) result.validation_loss = validated;

    const memory::Stats stats = memory.stats();
    report::StepStatus status;
    status.step = step + 1;
    status.steps = config.train.steps;
    status.loss = loss;
    status.tokens_per_second = static_cast<double>(experiment.tokens_per_step()) / seconds.back();
    status.peak = stats.allocated_peak;
    if (session.plan().budget > 0) status.budget = session.plan().budget;
    status.seconds = monotonic_seconds() - started;
    if (validates) status.validation_loss = result.validation_loss;
    progress.update(status);
    if (metrics) {
      nlohmann::ordered_json line = {{"step", step},
                                     {"loss", loss},
                                     {"gradient_norm", norm},
                                     {"step_seconds", seconds.back()},
                                     {"tokens_per_second", status.tokens_per_second},
                                     {"peak_bytes", stats.allocated_peak},
                                     {"replayed_ops", report.replayed_ops},
                                     {"evictions", report.evictions}};
      if (validates && result.validation_loss) line["validation_loss"] = *result.validation_loss;
      write_metrics(line);
    }
    // What is trained stays: by `after`, or else in a state.
    const bool due = (last && (config.state.every > 0 || !options.after)) ||
                     (config.state.every > 0 && (step + 1) % config.state.every == 0);
    if (!folder.empty() && due && result.steps > saved_at) save();
  }
  save_if_stopped();
  progress.finish();
  result.loss_first = state.loss_first.value_or(0);
  result.loss_last = state.loss_last.value_or(0);
  result.interrupted = interrupted();
  if (result.interrupted) {
    progress.note(fmt::format("stopped after {} of {} steps{}", result.steps, config.train.steps,
                              folder.empty()      ? "; without output.folder nothing is saved"
                              : result.steps == 0 ? "; nothing was trained"
                                                  : "; --resume goes on from there"));
  }
  result.step_seconds_median = median(seconds);
  if (result.step_seconds_median > 0) {
    result.tokens_per_second = static_cast<double>(experiment.tokens_per_step()) / result.step_seconds_median;
  }
  result.plan = session.plan();
  result.memory = memory.stats();
  result.resident_peak = memory::process_memory().resident_peak;
  if (options.after && result.steps > 0) options.after(experiment, result);
  state.finish();
  result.states_saved = state.saved();
  write_metrics({{"result", to_json(result)}});
  if (metrics) metrics->close();
  if (metrics_failure) throw Error(*metrics_failure);
  return result;
}

}  // namespace snug::train
