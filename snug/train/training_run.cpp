#include "snug/train/training_run.h"

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "snug/base/clock.h"
#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/process_memory.h"
#include "snug/plan/plan_file.h"
#include "snug/train/failed_in_all.h"
#include "snug/train/interrupt.h"
#include "snug/train/output_folder.h"
#include "snug/train/sinks.h"

namespace snug::train {
namespace {

/// Room for a copy of what is saved: what the budget leaves beside the steps; without one, half of what the device has
/// free.
Bytes room_beside(const Session& session, const memory::DeviceMemory& memory) {
  const Bytes budget = session.plan().budget;
  if (budget == 0) return memory.capacity().available / 2;
  return std::max<Bytes>(budget - session.predicted_peak() - plan::Budget::for_limit(budget).reserve, 0);
}

}  // namespace

TrainingRun::TrainingRun(Experiment& experiment, Session& session, RunState& state, report::Progress& progress,
                         TrainResult& result)
    : experiment_(experiment),
      config_(experiment.config()),
      session_(session),
      state_(state),
      progress_(progress),
      result_(result),
      step_(experiment),
      save_clock_(experiment.config()),
      scales_(experiment.scaler().options().enabled),
      done_(result.resumed_from),
      saved_at_(result.resumed_from) {
  sinks_.push_back(std::make_unique<SummarySink>(result, experiment.tokens_per_step()));
  sinks_.push_back(std::make_unique<ProgressSink>(progress));
}

void TrainingRun::begin() {
  // Only now: what cannot be planned, or is stopped before, leaves the run before as it was.
  team_stops_ = experiment_.team().interrupted_anywhere();
  const bool writes = saves() && !stops();
  if (writes && done_ == 0) put_earlier_run_aside(config_.output.folder, progress_);
  state_.restore();
  const auto existing = done_ > 0 ? JsonLines::Existing::Append : JsonLines::Existing::Replace;
  const std::filesystem::path folder = config_.output.folder;
  if (writes) sinks_.push_back(std::make_unique<MetricsSink>(folder / "metrics.jsonl", existing, progress_));
  memory::MonitorOptions watched{.device = experiment_.device(),
                                 .interval = config_.monitor.interval,
                                 .file = writes ? folder / "memory.jsonl" : std::filesystem::path(),
                                 .existing = existing};
  watched.alarms.growth_steps = config_.monitor.growth_steps;
  watched.alarms.headroom = config_.monitor.headroom;
  sinks_.push_back(std::make_unique<MonitorSink>(watched, progress_));
  for (const auto& sink : sinks_) sink->begins(config_, result_.parameters);
}

void TrainingRun::run(const TrainOptions& options) {
  try {
    run_steps();
    state_.wait();
    if (options.after && done_ > 0) options.after(experiment_, result_);
  } catch (const FailedInAll&) {
    leave(RunState::Others::Wait);
    throw;
  } catch (...) {
    leave(RunState::Others::MayBeGone);
    throw;
  }
  end();
}

bool TrainingRun::stops() const { return experiment_.team().size() > 1 ? team_stops_ : interrupted(); }

void TrainingRun::run_steps() {
  data::Prefetcher<data::Batch> batches([&](std::int64_t step) { return experiment_.train_batch(step); },
                                        {.workers = static_cast<int>(config_.data.workers),
                                         .depth = config_.data.prefetch,
                                         .first_step = done_,
                                         .pinned = false});
  started_ = monotonic_seconds();
  save_clock_.start();
  // The run before ended behind its last save, and in front of the loss.
  if (done_ == config_.train.steps && !state_.metric_found()) (void)validate();
  while (!is_last()) {
    const StepRecord record = run_step(batches);
    for (const auto& sink : sinks_) sink->step_over(record);
  }
  save();  // where a signal came behind the last step's own
  for (const auto& sink : sinks_) sink->steps_end();
  finish_result();
  ended_ = true;
}

void TrainingRun::end() {
  std::exception_ptr failure;
  const auto attempt = [&](const auto& action) {
    try {
      action();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  };
  attempt([&] { state_.finish(); });
  result_.states_saved = state_.saved();
  for (const auto& sink : sinks_) attempt([&] { sink->ends(result_); });
  if (failure) std::rethrow_exception(failure);
}

void TrainingRun::leave(RunState::Others others) {
  const auto attempt = [&](const auto& action) {
    try {
      action();
    } catch (const std::exception& error) {
      progress_.note(error.what());
    }
  };
  if (experiment_.has_part_of_state() && others == RunState::Others::MayBeGone) {
    if (saves() && done_ != saved_at_)
      progress_.note("each process has a part of the state, and one alone saves none; the newest that is there stays");
  } else if (whole_ && step_.whole()) {
    attempt([&] { save(others); });
  } else {
    progress_.note(fmt::format("the update of step {} did not come to its end: no state is saved of it", done_ + 1));
  }
  attempt([&] {
    if (ended_) return end();
    state_.finish();
  });
}

StepRecord TrainingRun::run_step(data::Prefetcher<data::Batch>& batches) {
  const double began = monotonic_seconds();
  const std::int64_t step = done_;
  experiment_.team().doing(fmt::format("in step {}", step + 1));
  const data::Batch batch = batches.next();
  verify_replays(step);
  save_clock_.ask_if_due();
  const double scale = experiment_.scaler().get_scale();
  const std::int64_t update = step - state_.skipped;
  const TrainingStep::Gradients made = step_.make_gradients(session_, batch, step, update);
  whole_ = false;
  step_.update(update);
  whole_ = true;
  done_ = step + 1;
  team_stops_ = made.stops;
  saves_now_ = made.saves;
  state_.random_of_team = made.random;
  if (made.overflowed) ++state_.skipped;
  if (!state_.loss_first) state_.loss_first = made.loss;
  state_.loss_last = made.loss;
  StepRecord record = record_of(made, update, scale);
  record.seconds = monotonic_seconds() - began;
  record.tokens_per_second = static_cast<double>(experiment_.tokens_per_step()) / record.seconds;

  const std::string& divergence = step_.last().divergence;
  if (!divergence.empty() && !std::exchange(said_so_, true))
    progress_.note(fmt::format("step {}: not the planned step, run under pressure ({})", done_, divergence));
  if (made.overflowed) {
    overflows_.one_more(experiment_.scaler(), done_);
  } else {
    overflows_.end();
  }
  if (saves_now_ && config_.output.folder.empty())
    progress_.note("asked to save the training state (SIGUSR1), but without output.folder nothing is saved");
  record.peak = experiment_.memory().stats().allocated_peak;
  for (const auto& sink : sinks_) sink->step(record);
  // In front of the validation, which may take long, and fail.
  if (saves_now_ || is_due(config_.state.every) || is_last()) save();
  if (is_last() || is_due(config_.train.validate_every)) record.validation_loss = validate();
  record.peak = experiment_.memory().stats().allocated_peak;
  record.run_seconds = monotonic_seconds() - started_;
  return record;
}

StepRecord TrainingRun::record_of(const TrainingStep::Gradients& made, std::int64_t update, double scale) {
  StepRecord record;
  record.step = done_;
  record.steps = config_.train.steps;
  record.tokens = done_ * experiment_.tokens_per_step();
  record.epoch = static_cast<double>(done_) / experiment_.steps_per_epoch();
  record.learning_rate = experiment_.learning_rate(update);
  record.loss = made.loss;
  record.gradient_norm = made.norm;
  record.overflowed = made.overflowed;
  if (scales_) {
    record.loss_scale = scale;
    record.next_loss_scale = experiment_.scaler().get_scale();
  }
  const TrainingStep::Report& report = step_.last();
  record.replayed_ops = report.replayed_ops;
  record.lossy_bytes = report.lossy_bytes;
  record.evictions = report.evictions;
  if (session_.plan().budget > 0) record.budget = session_.plan().budget;
  return record;
}

void TrainingRun::verify_replays(std::int64_t step) {
  const MemoryConfig& memory = config_.memory;
  const VerifyReplay by = memory.verify_replay_by == VerifyBy::Values ? VerifyReplay::Values : VerifyReplay::Hashes;
  const bool is_asked_for = memory.verify_replay_every > 0 && step % memory.verify_replay_every == 0;
  session_.verify_replays(is_asked_for ? by : memory.check_first_step ? VerifyReplay::Once : VerifyReplay::Off);
}

std::optional<double> TrainingRun::validate() {
  // Who sends a signal may not wait for its end.
  const auto save_if_stopped = [this] {
    if (stops()) save();
  };
  const std::optional<double> loss = experiment_.validation_loss(save_if_stopped);
  if (!loss) return loss;
  if (saves() && done_ == saved_at_) state_.set_metric(done_, *loss);
  for (const auto& sink : sinks_) sink->validated(done_, *loss);
  return loss;
}

void TrainingRun::save(RunState::Others others) {
  forget_save_request();
  if (config_.output.folder.empty() || done_ == saved_at_ || (others == RunState::Others::MayBeGone && !saves()))
    return;
  const std::int64_t before = std::exchange(saved_at_, done_);
  auto not_saved = c10::make_scope_exit([&] { saved_at_ = before; });
  experiment_.team().doing(fmt::format("saving behind step {}", done_));
  // Of now: a session plans anew when a step or the memory around it changes.
  std::string plan;
  if (saves()) plan = to_json(plan::plan_file_for(session_.graph(), session_.plan())).dump() + "\n";
  save_clock_.begin_save();
  state_.save(done_, plan, room_beside(session_, experiment_.memory()), progress_, others);
  save_clock_.end_save();
  not_saved.release();
}

void TrainingRun::finish_result() {
  result_.steps = done_;
  result_.loss_first = state_.loss_first.value_or(0);
  result_.loss_last = state_.loss_last.value_or(0);
  result_.scaled.skipped_steps = state_.skipped;
  if (scales_) result_.scaled.loss_scale = experiment_.scaler().get_scale();
  result_.interrupted = stops();
  if (result_.interrupted) {
    progress_.note(fmt::format("stopped after {} of {} steps{}", done_, config_.train.steps,
                               !saves()     ? "; without output.folder nothing is saved"
                               : done_ == 0 ? "; nothing was trained"
                                            : "; --resume goes on from there"));
  }
  result_.plan = session_.plan();
  result_.peaks = {
      .predicted = session_.predicted_peak(), .unplanned = session_.unplanned_peak(), .copies = state_.most_copied()};
  result_.memory = experiment_.memory().stats();
  result_.arena = session_.arena();
  result_.resident.peak = memory::process_memory().resident_peak;
}

}  // namespace snug::train
