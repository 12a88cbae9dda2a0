#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/report/progress.h"
#include "snug/state/state_writer.h"
#include "snug/state/training_state.h"
#include "snug/train/experiment.h"
#include "snug/train/state_of_team.h"

namespace snug::train {

/// The training state of an experiment in a folder: what trains, the optimizer, the random generator, the position in
/// the data, and the configuration. Weights that are frozen are not in it; they come from model.path again.
class RunState {
 public:
  /// `folder` is made when something is saved. The experiment must outlive this.
  RunState(Experiment& experiment, std::filesystem::path folder);

  /// The configuration of the newest undamaged state in the folder, without settings that this version of snug does not
  /// know (see known_part); nullopt if there is no such state.
  static std::optional<Config> config_in(const std::filesystem::path& folder);

  /// Finds the newest state that is whole, telling of each that is not, and of each setting that this version of snug
  /// does not know. Returns the steps that were done; nullopt when there is no state. Throws UsageError when the state
  /// is of another run: of another model, data or order; Error when there are states and none is whole.
  std::optional<std::int64_t> find(report::Progress& progress);
  /// The same of a run that is to have so many steps in all, telling what was found: 0 where nothing was. Throws
  /// UsageError for a state of more steps, too.
  std::int64_t find_for(std::int64_t steps, report::Progress& progress);
  /// Of a team that has the state in parts, all at once: they know what each has. Where they are known to be alike.
  void share();
  /// Goes on from the state that was found, if one was. To be called when the step has been recorded, which is done
  /// with an optimizer that has not begun.
  void restore();

  /// Saves what is there after `step` steps, and the plan that is followed; see StateWriter::write for `room`. A
  /// failure is noted, and the run goes on; finish() reports it at the end. In a team all processes call it: the first
  /// one writes; the others send it their shards and wait until it is done, longer than the timeout of collectives if
  /// necessary. With MayBeGone the first process calls it alone, which a state in shards does not allow.
  enum class Others : std::uint8_t { Wait, MayBeGone };
  void save(std::int64_t step, const std::string& plan, Bytes room, report::Progress& progress, Others others);
  /// Notes the validation loss in the state of `step`, which was saved last or is the one that the run goes on from:
  /// with the next save, or at the end, as it may be written still. For the process that writes.
  void set_metric(std::int64_t step, double loss) { metric_ = {step, loss}; }
  /// The same of the state that was found.
  [[nodiscard]] std::optional<double> metric_found() const;

  /// Waits for what is being written.
  void wait();
  /// The same. Throws Error when the last save failed.
  void finish();

  /// First and last loss of the run, which a resumed one goes on to report.
  std::optional<double> loss_first, loss_last;
  /// Steps of the run without an update, as gradients overflowed: the schedule does not count them.
  std::int64_t skipped = 0;
  /// States of the generators of a team after the last step, by Team::drawer(); none of one process alone.
  std::vector<std::string> random_of_team;

  [[nodiscard]] std::int64_t saved() const { return saved_; }
  /// Bytes of the largest copy that was written in the background.
  [[nodiscard]] Bytes most_copied() const { return most_copied_; }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

 private:
  [[nodiscard]] state::NamedTensors weights() const;
  [[nodiscard]] bool has_part_of_weights() const;
  state::StateWriter& writer();
  void write(std::int64_t step, const std::string& plan, Bytes room);
  void add_loss(const char* name, std::optional<double>& loss);
  void restore_own_random();

  Experiment& experiment_;
  std::filesystem::path folder_;
  state::TrainingState state_;
  std::optional<StateOfTeam> in_shards_;
  std::optional<state::StateFolder> found_;
  std::vector<std::filesystem::path> damaged_;
  std::optional<state::StateWriter> writer_;
  std::optional<std::pair<std::int64_t, double>> metric_;  // of a step, to be noted in its state
  std::optional<std::string> failure_;
  std::int64_t saved_ = 0;
  Bytes most_copied_ = 0;
};

}  // namespace snug::train
