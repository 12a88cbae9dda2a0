#include "snug/train/staged_model.h"

#include <utility>

namespace snug::train {

/// What the stages are of, while they run.
class StagedModel::Running {
 public:
  Running(StagedModel& of, const std::vector<MicroBatch>& micros, const Weigh* weigh) : of_(of) {
    of_.micros_ = &micros;
    of_.weigh_ = weigh;
  }
  ~Running() {
    of_.micros_ = nullptr;
    of_.weigh_ = nullptr;
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  StagedModel& of_;
};

std::vector<int> stages_at(int place, int processes, const plan::PipelineSchedule& schedule) {
  std::vector<int> stages;
  for (int chunk = 0; chunk < plan::chunks_of(schedule); ++chunk) stages.push_back(chunk * processes + place);
  return stages;
}

StagedModel::StagedModel(std::shared_ptr<parallel::ProcessGroup> group, const plan::PipelineSchedule& schedule,
                         RunStage run)
    : run_(std::move(run)), last_(group->size() * plan::chunks_of(schedule) - 1), pipeline_(group, schedule, [&] {
        std::vector<parallel::PipelineStage> own;
        for (const int stage : stages_at(group->rank(), group->size(), schedule)) {
          own.emplace_back([this, stage](const at::Tensor& input, int i) {
            const MicroBatch& micro = micros_->at(static_cast<std::size_t>(i));
            const at::Tensor made = run_(stage, input, micro);
            return stage == last_ && weigh_ != nullptr ? (*weigh_)(made, micro) : made;
          });
        }
        return own;
      }()) {}

std::vector<at::Tensor> StagedModel::step(const std::vector<MicroBatch>& micros, const Weigh& weigh) {
  const Running running(*this, micros, &weigh);
  return pipeline_.step(static_cast<int>(micros.size()));
}

std::vector<at::Tensor> StagedModel::evaluate(const std::vector<MicroBatch>& micros) {
  const Running running(*this, micros, nullptr);
  return pipeline_.evaluate(static_cast<int>(micros.size()));
}

}  // namespace snug::train
