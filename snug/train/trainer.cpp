#include "snug/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>

#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/held_limit.h"
#include "snug/memory/process_memory.h"
#include "snug/report/count.h"
#include "snug/train/choose.h"
#include "snug/train/experiment.h"
#include "snug/train/interrupt.h"
#include "snug/train/output_folder.h"
#include "snug/train/parallel_rules.h"
#include "snug/train/planned_experiment.h"
#include "snug/train/run_state.h"
#include "snug/train/training_run.h"

namespace snug::train {
namespace {

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
  if (config.optimizer.warmup_steps > config.train.steps && options.team.is_first()) {
    progress.note(fmt::format("optimizer.warmup_steps = {} and train.steps = {}: the learning rate does not reach {}",
                              config.optimizer.warmup_steps, config.train.steps, config.optimizer.learning_rate));
  }
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
  TrainingRun run(experiment, session, state, progress, result);
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
