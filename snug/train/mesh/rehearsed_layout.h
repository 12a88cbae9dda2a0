#pragma once

#include <cstdint>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/plan/run/pipeline_schedule.h"
#include "snug/train/config.h"
#include "snug/train/mesh/devices.h"

namespace snug::train {

/// What a process of a layout takes: the first of those with its stages.
struct RehearsedProcess {
  int place = 0;  ///< in the pipeline
  Bytes unplanned_peak = 0, predicted_peak = 0, measured_peak = 0;
  Bytes floor = 0;                          ///< the smallest budget
  std::vector<plan::StageSeconds> seconds;  ///< of a micro-batch under the plan, by its stages
  double unplanned_seconds = 0;             ///< of forward and backward with all micro-batches, without a plan
  double rest = 0;  ///< of a step beside what all these take, or all of it where there are no stages
};

/// A step of a configuration's layout, as so many processes would do it.
struct RehearsedLayout {
  std::vector<RehearsedProcess> processes;  ///< by their place in the pipeline
  std::vector<double> hand_over;            ///< by stage, until what it has made is with the next one
  int blocks = 0;                           ///< of all stages; 0 where there are none
  double seconds = 0;                       ///< of a step
  double idle = 0;                          ///< share of that in which processes wait for other stages, on the average
  double tokens_per_second = 0;
};

/// Runs it: for each place of the pipeline the steps of one process, recorded, planned and run as in a run of all,
/// whose collectives take the time that the links say (see parallel::Rehearsal). Bytes are those of a real run;
/// seconds are of this machine, computing with config.train.threads. Stages in the middle that have as many blocks as
/// another one before them are not run: they take its time, and no more memory. Needs warm_up(). Throws UsageError for
/// what cannot be a run of so many processes, DoesNotFit, OutOfBudget, and Stopped when interrupted() says so.
RehearsedLayout rehearse_layout(const Config& config, const Devices& devices);

}  // namespace snug::train
