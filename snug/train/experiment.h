#pragma once

#include <c10/core/DeviceGuard.h>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/memory/tiers.h"
#include "snug/optim/clipping.h"
#include "snug/optim/grad_scaler.h"
#include "snug/optim/optimizer.h"
#include "snug/optim/schedule.h"
#include "snug/record/random_state.h"
#include "snug/replay/streamed_tensors.h"
#include "snug/train/config.h"
#include "snug/train/language_task.h"
#include "snug/train/micro_batches.h"
#include "snug/train/staged_model.h"
#include "snug/train/team.h"

namespace snug::train {

/// What a configuration describes, made: model, data, optimizer. The same configuration makes the same experiment, bit
/// for bit.
class Experiment {
 public:
  /// Throws UsageError for a configuration that cannot be: see validate(), TextCorpus::open and TextDataset.
  /// Those of a team have the first's weights, and generators of their own.
  explicit Experiment(const Config& config, Team team = {});
  Experiment(const Experiment&) = delete;
  Experiment& operator=(const Experiment&) = delete;

  /// The loss of one batch, in the configured precision: a scalar on the autograd graph.
  at::Tensor loss(const data::Batch& batch);

  /// Of a model in stages: forward and backward with the micro-batches of this process's replica, whose rows are whole.
  /// Returns what `weigh` makes of each loss, in the process that has the last stage, and nothing in others. Gradients
  /// of all processes are there behind it.
  std::vector<at::Tensor> step_in_stages(
      const std::vector<MicroBatch>& micros,
      const std::function<at::Tensor(const at::Tensor& loss, const MicroBatch& micro)>& weigh);
  /// Forward alone.
  std::vector<at::Tensor> evaluate_in_stages(const std::vector<MicroBatch>& micros) {
    return stages_->evaluate(micros);
  }
  /// How many blocks all stages have; none where the model is in no stages.
  [[nodiscard]] const std::vector<int>& blocks_by_stage() const noexcept { return blocks_by_stage_; }
  /// Whether this process has some stages of the model: then there is no loss() of it alone.
  [[nodiscard]] bool is_in_stages() const noexcept { return stages_ != nullptr; }

  /// On the device, as all batches that others give it have to be; see to_device(). Safe from any number of threads.
  [[nodiscard]] data::Batch train_batch(std::int64_t step) const;
  [[nodiscard]] data::Batch to_device(data::Batch batch) const;

  /// What the schedule says for an update, from 0.
  [[nodiscard]] double learning_rate(std::int64_t update) const;
  /// What becomes of gradients before it.
  [[nodiscard]] optim::Clipping clipping() const;

  /// The loss of a batch that nothing is learned from: in evaluation mode, and without gradients, one micro-batch after
  /// the other. Zero where another process has the last stage.
  at::Tensor evaluate(const data::Batch& batch);

  /// A batch as validation has them; nullopt when there is none, see validation_loss().
  [[nodiscard]] std::optional<data::Batch> validation_sample() const;

  /// Mean of evaluate() over the validation split, of which each process of a team has its part; nullopt when there is
  /// none: rows of documents have none.
  /// `between` is called after each of its batches; may be empty.
  std::optional<double> validation_loss(const std::function<void()>& between = {});

  [[nodiscard]] const Config& config() const noexcept { return config_; }
  /// With which it is trained.
  [[nodiscard]] const Team& team() const noexcept { return team_; }
  /// So that this process of several draws what no other does, from that update on.
  void draw_apart(std::int64_t update);
  /// Where the model, its batches and what is made of them are, and the memory there.
  [[nodiscard]] c10::Device device() const noexcept { return device_; }
  [[nodiscard]] memory::DeviceMemory& memory() const { return memory::device_memory(device_); }
  /// Where plans may move what is in it: for the sessions of its steps.
  [[nodiscard]] const std::shared_ptr<memory::Tiers>& tiers() const noexcept { return tiers_; }
  /// Weights, their gradients and what the optimizer keeps of them, where they are not all in it; else nullptr. By
  /// operators of the thread that has made this.
  [[nodiscard]] const std::shared_ptr<StreamedTensors>& streamed() const noexcept { return streamed_; }
  /// The same, of which bring_back() has brought all.
  void stream_again();
  /// What steps draw from.
  [[nodiscard]] at::Generator generator() const { return record::default_generator(device_); }
  [[nodiscard]] torch::nn::Module& model() const noexcept { return task_.module(); }
  [[nodiscard]] const LanguageModel& language_model() const noexcept { return task_.model(); }
  [[nodiscard]] const data::Tokenizer& tokenizer() const noexcept { return task_.tokenizer(); }
  /// Of the text, of the files of the pretrained model and of an adapter's settings, to tell when they were replaced:
  /// sizes and samples.
  [[nodiscard]] const std::string& fingerprint() const noexcept { return task_.fingerprint(); }
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return task_.notes(); }
  /// Tokens that end a text.
  [[nodiscard]] const std::vector<data::TokenId>& ends() const noexcept { return task_.ends(); }
  /// The token that begins a text, where a GGUF file names one.
  [[nodiscard]] std::optional<data::TokenId> begin() const noexcept { return task_.begin(); }
  /// Of the parameters that train, or of this process's shards of them.
  [[nodiscard]] optim::Optimizer& optimizer() noexcept { return *optimizer_; }
  /// Of the parameters of the whole model; packed weights are none.
  struct Elements {
    std::int64_t all = 0, trained = 0;
  };
  [[nodiscard]] const Elements& elements() const noexcept { return elements_; }
  /// The names of its parameters, or of those that its shards are of.
  [[nodiscard]] const std::vector<std::string>& trained_names() const noexcept { return trained_names_; }
  /// What adds up gradients with the other processes of the team; nullptr for one alone.
  [[nodiscard]] TeamGradients* together() const noexcept { return together_.get(); }
  /// Whether this process updates shards, and others the rest.
  [[nodiscard]] bool is_sharded() const noexcept { return together_ && config_.parallel.shard != ShardOf::None; }
  /// Of the model's parameters, of which others have the rest, or all; none where they are whole.
  [[nodiscard]] const std::vector<models::ParameterPart>& parameter_parts() const noexcept { return in_parts_.divided; }
  /// Whether this process has a part of the training state, and others the rest.
  [[nodiscard]] bool has_part_of_state() const noexcept { return is_sharded() || !parameter_parts().empty(); }
  /// What is needed of others for what is of all gradients.
  [[nodiscard]] const optim::OtherParts& other_parts() const noexcept { return other_parts_; }
  /// Whether weights are in shards, too.
  [[nodiscard]] bool has_sharded_weights() const noexcept {
    return together_ && config_.parallel.shard == ShardOf::Parameters;
  }
  /// Of the parameters whose contents are.
  [[nodiscard]] const std::vector<parallel::DividedParameter>& divided() const noexcept { return divided_; }
  /// Gradients of shards are there: they are those of all replicas from then on.
  void add_up_copies(parallel::Reduction::Purpose purpose);
  /// All processes have updated their shards: so have all weights been.
  void gather_weights(parallel::Reduction::Purpose purpose);
  /// Enabled where losses are scaled: in fp16.
  [[nodiscard]] optim::GradScaler& scaler() noexcept { return scaler_; }
  [[nodiscard]] std::int64_t tokens_per_step() const { return task_.units_per_step(); }
  [[nodiscard]] double steps_per_epoch() const { return task_.steps_per_epoch(); }

 private:
  /// What this process of a team has of the model, and adds up with others.
  void join_team(optim::Parameters& trained);
  void keep_stages(const models::CausalLmImpl::Work& work, optim::Parameters& trained);
  [[nodiscard]] optim::OtherParts other_parts_of(const optim::Parameters& trained) const;

  Config config_;
  Team team_;
  c10::Device device_;
  c10::DeviceGuard is_current_;  // where what other stages hand on is put
  std::shared_ptr<memory::Tiers> tiers_;
  std::shared_ptr<StreamedTensors> streamed_;  // whose tensors go first, as nobody wants them back then
  LanguageTask task_;
  Elements elements_;
  models::ModelInParts in_parts_;
  std::vector<at::Tensor> shared_;  // of the first and the last stage
  std::unique_ptr<StagedModel> stages_;
  std::vector<int> blocks_by_stage_;
  std::vector<parallel::DividedParameter> divided_;
  std::unique_ptr<TeamGradients> together_;
  optim::OtherParts other_parts_;
  std::vector<std::string> trained_names_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::Schedule schedule_;
  optim::GradScaler scaler_;
};

/// Runs a tiny step of the same kind, so that what LibTorch loads and sets up on first use is there: kernels, thread
/// pools, scratch. Resident memory after it is the process's start-up.
void warm_up(const Config& config);

}  // namespace snug::train
