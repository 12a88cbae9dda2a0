#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "snug/parallel/process_group.h"
#include "snug/plan/run/pipeline_schedule.h"

namespace snug::parallel {

/// A part of a model: of what the stage before has made of a micro-batch, or an undefined tensor in the first stage,
/// which has the micro-batch itself, to one tensor, or in the last stage to the loss, a scalar.
using PipelineStage = std::function<at::Tensor(const at::Tensor& input, int micro_batch)>;

/// A parameter that several stages have, as an embedding that is the output projection too: of a group of the processes
/// that have it, in which this one is. All of them have those that they share in one order, which is that of one list
/// of all.
struct SharedParameter {
  at::Tensor parameter;
  std::shared_ptr<ProcessGroup> group;
};

/// The stages of a model in several processes, each of which has some of them: micro-batches go through them in the
/// order of a schedule (Huang et al. 2019, arXiv:1811.06965, and those that pipeline_schedule.h names). Gradients are
/// those of one process that goes forward and backward with one micro-batch after the other, to the bit; but of shared
/// parameters, whose sums have another order, the same in all. A stage may be called again before its last call has
/// gone backward; snug::Region and snug::checkpoint say what of it is kept. No collective of the same group is under
/// way in between.
class Pipeline {
 public:
  /// `stages`: as many as chunks_of(schedule); stage i is number i * processes + rank of the model. Throws UsageError
  /// for other numbers, and for zero_bubble, which has backward passes that autograd does not have.
  Pipeline(std::shared_ptr<ProcessGroup> group, plan::PipelineSchedule schedule, std::vector<PipelineStage> stages,
           std::vector<SharedParameter> shared = {});

  /// Forward and backward with all of them; gradients are added to what parameters have. Returns the losses of the
  /// micro-batches in the process that has the last stage, and nothing in others. Throws GroupFailed, and what a stage
  /// throws: then it ends in the others with EndedByAnother, and another step may begin in all of them.
  std::vector<at::Tensor> step(int micro_batches);

  /// Forward alone, without gradients: what the last stage makes of each micro-batch, in the process that has it, and
  /// nothing in others. Throws as step().
  std::vector<at::Tensor> evaluate(int micro_batches);

  /// Whether this process has the last stage.
  [[nodiscard]] bool has_loss() const noexcept { return group_->rank() == group_->size() - 1; }
  /// Micro-batches of its stages that were alive at once in the last step.
  [[nodiscard]] int most_alive() const noexcept { return most_alive_; }

 private:
  class Step;
  std::shared_ptr<ProcessGroup> group_;
  plan::PipelineSchedule schedule_;
  std::vector<PipelineStage> stages_;
  std::vector<SharedParameter> shared_;
  int most_alive_ = 0;
};

}  // namespace snug::parallel
