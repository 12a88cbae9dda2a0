#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "snug/models/causal_lm.h"
#include "snug/parallel/pipeline.h"
#include "snug/plan/run/pipeline_schedule.h"
#include "snug/train/micro_batches.h"

namespace snug::train {

/// A model of which this process has some stages of a pipeline, and others of a group the rest.
class StagedModel {
 public:
  /// Stage `stage` of a micro-batch, whose rows are whole, of what the stage before has made.
  using RunStage = std::function<at::Tensor(int stage, const at::Tensor& input, const MicroBatch& micro)>;

  StagedModel(std::shared_ptr<parallel::ProcessGroup> group, const plan::PipelineSchedule& schedule, RunStage run);
  StagedModel(const StagedModel&) = delete;
  StagedModel& operator=(const StagedModel&) = delete;

  /// Forward and backward with all of them. `weigh` makes of the loss of a micro-batch what goes backward. Returns
  /// these in the process that has the last stage, and nothing in others.
  std::vector<at::Tensor> step(const std::vector<MicroBatch>& micros,
                               const std::function<at::Tensor(const at::Tensor& loss, const MicroBatch&)>& weigh);
  /// Forward alone; the losses as they are.
  std::vector<at::Tensor> evaluate(const std::vector<MicroBatch>& micros);

 private:
  using Weigh = std::function<at::Tensor(const at::Tensor& loss, const MicroBatch&)>;
  class Running;

  RunStage run_;
  int last_;
  const std::vector<MicroBatch>* micros_ = nullptr;  // of what runs now
  const Weigh* weigh_ = nullptr;
  parallel::Pipeline pipeline_;
};

/// The stages of the process at that place of so many.
std::vector<int> stages_at(int place, int processes, const plan::PipelineSchedule& schedule);

}  // namespace snug::train
