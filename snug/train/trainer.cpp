#include "snug/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/clock.h"
#include "snug/base/errors.h"
#include "snug/data/prefetcher.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/held_limit.h"
#include "snug/memory/process_memory.h"
#include "snug/report/count.h"
#include "snug/train/choose.h"
#include "snug/train/experiment.h"
#include "snug/train/failed_in_all.h"
#include "snug/train/interrupt.h"
#include "snug/train/output_folder.h"
#include "snug/train/overflows.h"
#include "snug/train/parallel_rules.h"
#include "snug/train/planned_experiment.h"
#include "snug/train/run_state.h"
#include "snug/train/save_clock.h"
#include "snug/train/sinks.h"
#include "snug/train/training_step.h"

namespace snug::train {
namespace {

/// Room for a copy of what is saved: what the budget leaves beside the steps; without one, half of what the device has
/// free.
Bytes room_beside(const Session& session, const memory::DeviceMemory& memory) {
  const Bytes budget = session.plan().budget;
  if (budget == 0) return memory.capacity().available / 2;
  return std::max<Bytes>(budget - session.predicted_peak() - plan::Budget::for_limit(budget).reserve, 0);
}

std::string describe(const Session& session) {
  const plan::MemoryPlan& p = session.plan();
  return fmt::format("plan \"{}\": {} operators, unplanned peak {}, predicted peak {}{}", p.strategy,
                     session.graph().ops.size(), format_bytes(session.unplanned_peak()),
                     format_bytes(session.predicted_peak()),
                     p.budget > 0 ? ", budget " + format_bytes(p.budget) : std::string());
}

/// The limit that holds from the first on: of a budget in bytes. One in percent is not known before a recording.
std::optional<Bytes> cap_of(const Config& config, const std::optional<plan::PlanFile>& file) {
  return plan::limit_of(requested_budget(config.memory.budget, file));
}

/// With what is chosen to fit the budget; a run that goes on has the choices that it had.
Config chosen_for(const Config& config, const TrainOptions& options, report::Progress& progress) {
  if (options.plan) {
    if (config.memory.allow.empty()) return config;
    throw UsageError(
        "train: memory.allow may change the step, and --plan is of the step as it is; leave one of them out");
  }
  if (options.team.size() > 1) return config;  // each would choose by itself
  if (options.start == Start::Resume) {
    const auto before = RunState::config_in(std::filesystem::path(config.output.folder) / "state");
    if (before) return adopt_choices(config, *before);
  }
  return choose(config, progress).config;
}

/// What was taken before does not count.
void begin_peaks(memory::DeviceMemory& memory) {
  memory.release_cached();
  memory.reset_peak();
}

/// The steps of a run, and what is told and saved of them.
class Run {
 public:
  Run(Experiment& experiment, Session& session, RunState& state, report::Progress& progress, TrainResult& result)
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

  /// Before the first step.
  void begin() {
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

  /// All steps, and what comes behind them. Whatever fails, the steps that were done are not lost.
  void run(const TrainOptions& options) {
    try {
      run_steps();
      state_.wait();
      if (options.after && done_ > 0) options.after(experiment_, result_);
    } catch (const FailedInAll&) {
      leave(Others::Wait);
      throw;
    } catch (...) {
      leave(Others::MayBeGone);
      throw;
    }
    end();
  }

 private:
  [[nodiscard]] bool saves() const { return !config_.output.folder.empty() && experiment_.team().is_first(); }
  [[nodiscard]] bool stops() const { return experiment_.team().size() > 1 ? team_stops_ : interrupted(); }
  [[nodiscard]] bool is_due(std::int64_t every) const { return every > 0 && done_ % every == 0; }
  [[nodiscard]] bool is_last() const { return done_ == config_.train.steps || stops(); }

  void run_steps() {
    data::Prefetcher<data::Batch> batches([&](std::int64_t step) { return experiment_.train_batch(step); },
                                          {.workers = static_cast<int>(config_.data.workers),
                                           .depth = config_.data.prefetch,
                                           .first_step = done_,
                                           .pinned = false});
    started_ = monotonic_seconds();
    save_clock_.start();
    // The run before ended behind its last save, and in front of the loss.
    if (done_ == config_.train.steps && !state_.metric_found()) result_.validation_loss = validate();
    while (!is_last()) {
      const StepRecord record = run_step(batches);
      for (const auto& sink : sinks_) sink->step(record);
    }
    save();  // where a signal came behind the last step's own
    for (const auto& sink : sinks_) sink->steps_end();
    finish_result();
    ended_ = true;
  }

  /// All is saved that is to be, and told. Throws the first of what failed.
  void end() {
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

  using Others = RunState::Others;

  /// After a failure, which is told by others: here only what goes wrong beside it.
  void leave(Others others) {
    const auto attempt = [&](const auto& action) {
      try {
        action();
      } catch (const std::exception& error) {
        progress_.note(error.what());
      }
    };
    if (experiment_.has_part_of_state() && others == Others::MayBeGone) {
      if (saves() && done_ != saved_at_)
        progress_.note(
            "each process has a part of the state, and one alone saves none; the newest that is there stays");
    } else if (whole_ && step_.whole()) {
      attempt([&] { save(others); });
    } else {
      progress_.note(fmt::format("the update of step {} did not come to its end: no state is saved of it", done_ + 1));
    }
    attempt([&] { ended_ ? end() : state_.finish(); });
  }

  StepRecord run_step(data::Prefetcher<data::Batch>& batches) {
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
    StepRecord record;
    record.seconds = monotonic_seconds() - began;
    record.step = done_;
    record.tokens = done_ * experiment_.tokens_per_step();
    record.epoch = static_cast<double>(done_) / experiment_.steps_per_epoch();
    record.learning_rate = experiment_.learning_rate(update);
    if (scales_) {
      record.loss_scale = scale;
      record.next_loss_scale = experiment_.scaler().get_scale();
    }
    record.overflowed = made.overflowed;
    record.steps = config_.train.steps;
    record.loss = made.loss;
    record.gradient_norm = made.norm;
    record.tokens_per_second = static_cast<double>(experiment_.tokens_per_step()) / record.seconds;

    if (!state_.loss_first) state_.loss_first = made.loss;
    state_.loss_last = made.loss;
    const TrainingStep::Report& report = step_.last();
    record.replayed_ops = report.replayed_ops;
    record.lossy_bytes = report.lossy_bytes;
    record.evictions = report.evictions;
    if (!report.divergence.empty() && !std::exchange(said_so_, true))
      progress_.note(fmt::format("step {}: not the planned step, run under pressure ({})", done_, report.divergence));
    made.overflowed ? overflows_.one_more(experiment_.scaler(), done_) : overflows_.end();
    if (saves_now_ && config_.output.folder.empty())
      progress_.note("asked to save the training state (SIGUSR1), but without output.folder nothing is saved");
    // In front of the validation, which may take long, and fail.
    if (saves_now_ || is_due(config_.state.every) || is_last()) save();
    if (is_last() || is_due(config_.train.validate_every)) record.validation_loss = validate();
    record.peak = experiment_.memory().stats().allocated_peak;
    if (session_.plan().budget > 0) record.budget = session_.plan().budget;
    record.run_seconds = monotonic_seconds() - started_;
    return record;
  }

  void verify_replays(std::int64_t step) {
    const MemoryConfig& memory = config_.memory;
    const VerifyReplay by = memory.verify_replay_by == VerifyBy::Values ? VerifyReplay::Values : VerifyReplay::Hashes;
    const bool is_asked_for = memory.verify_replay_every > 0 && step % memory.verify_replay_every == 0;
    session_.verify_replays(is_asked_for ? by : memory.check_first_step ? VerifyReplay::Once : VerifyReplay::Off);
  }

  /// The state of these steps has the loss, where there is one.
  std::optional<double> validate() {
    // Who sends a signal may not wait for its end.
    const auto save_if_stopped = [this] {
      if (stops()) save();
    };
    const std::optional<double> loss = experiment_.validation_loss(save_if_stopped);
    if (loss && saves() && done_ == saved_at_) state_.set_metric(done_, *loss);
    return loss;
  }

  /// Unless there is a state of these steps, or none is asked for.
  void save(Others others = Others::Wait) {
    forget_save_request();
    if (config_.output.folder.empty() || done_ == saved_at_ || (others == Others::MayBeGone && !saves())) return;
    saved_at_ = done_;
    experiment_.team().doing(fmt::format("saving behind step {}", done_));
    // Of now: a session plans anew when a step or the memory around it changes.
    std::string plan;
    if (saves()) plan = to_json(plan::plan_file_for(session_.graph(), session_.plan())).dump() + "\n";
    save_clock_.begin_save();
    state_.save(done_, plan, room_beside(session_, experiment_.memory()), progress_, others);
    save_clock_.end_save();
  }

  void finish_result() {
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

  Experiment& experiment_;
  const Config& config_;
  Session& session_;
  RunState& state_;
  report::Progress& progress_;
  TrainResult& result_;
  TrainingStep step_;
  SaveClock save_clock_;
  bool scales_;  // losses
  std::vector<std::unique_ptr<Sink>> sinks_;
  Overflows overflows_;
  std::int64_t done_;        // steps
  std::int64_t saved_at_;    // of them, when the newest state was saved
  bool whole_ = true;        // the weights are those after so many steps
  bool ended_ = false;       // no step follows
  bool said_so_ = false;     // that a step is not the planned one
  bool team_stops_ = false;  // behind the last step: one of its processes was asked to
  bool saves_now_ = false;   // the same
  double started_ = 0;
};

/// Runs into `result`. `unplanned` is the configuration as long as it has no plan, and nothing else can be advised.
void train_chosen(const Config& asked, report::Progress& progress, const TrainOptions& options, TrainResult& result,
                  std::optional<Config>& unplanned) {
  if (options.start == Start::Resume && asked.output.folder.empty())
    throw UsageError("train: resuming needs output.folder, where the training state is");
  check_output_folder(asked);
  validate(asked);
  warm_up(asked);
  result.resident.start = memory::process_memory().resident;
  const std::filesystem::path folder = asked.output.folder;
  check_for_team(asked, options.team);
  for (const std::string& note : notes_for_team(asked, options.team)) progress.note(note);
  if (options.plan) check_plan_for_team(options.team);
  std::optional<FolderLock> alone;
  if (options.team.is_first()) alone = lock_output_folder(folder);
  const Config config = chosen_for(asked, options, progress);
  Experiment experiment(config, options.team);
  if (options.team.is_first()) std::ranges::for_each(experiment.notes(), [&](const auto& n) { progress.note(n); });
  RunState state(experiment, folder / "state");
  if (options.start == Start::Resume) result.resumed_from = result.steps = state.find_for(config.train.steps, progress);
  check_same_in_team(options.team, experiment.fingerprint(), result.resumed_from, experiment.device());
  state.share();
  // Of a run that goes on nothing may change.
  if (result.resumed_from == 0 && !options.plan) unplanned = config;
  result.parameters = experiment.elements().all;
  result.trained_parameters = experiment.elements().trained;

  auto& memory = experiment.memory();
  const std::optional<Bytes> cap = cap_of(config, options.plan);
  if (options.before) {
    memory.release_cached();
    std::optional<memory::HeldLimit> capped;
    if (cap) capped.emplace(memory, *cap);
    options.before(experiment);
  }
  begin_peaks(memory);
  const bool of_share = !cap && requested_budget(config.memory.budget, options.plan);
  progress.note(fmt::format("{} parameters{}; recording one step{}", report::format_count(result.parameters),
                            result.trained_parameters == result.parameters
                                ? ""
                                : fmt::format(", {} of them train", report::format_count(result.trained_parameters)),
                            of_share ? ", without a limit, as the budget is a share of what it takes" : ""));
  Session session = plan_session(experiment, Kinds::Run, options.plan);
  unplanned.reset();
  Run run(experiment, session, state, progress, result);
  run.begin();
  result.recording_peak = memory.stats().allocated_peak;
  begin_peaks(memory);
  progress.note(describe(session));
  run.run(options);
}

}  // namespace

TrainResult train(const Config& config, report::Progress& progress, const TrainOptions& options) {
  TrainResult result;
  std::optional<Config> unplanned;
  try {
    train_chosen(config, progress, options, result, unplanned);
    return result;
  } catch (const DoesNotFit& refusal) {
    if (!unplanned || options.team.size() > 1) throw;
    throw with_cheapest_change(refusal, *unplanned, progress);
  } catch (const replay::GroupEnded&) {
    if (!interrupted()) throw;  // another process was stopped too, and said so first
  } catch (const parallel::GroupFailed& failed) {
    if (!interrupted()) throw;
    progress.note(failed.what());  // another process has left a collective, perhaps as it was stopped too
  } catch (const Stopped&) {
    progress.note("stopped while a step was recorded; nothing was trained");
  }
  result.interrupted = true;
  return result;
}

}  // namespace snug::train
