#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "snug/base/agreement.h"
#include "snug/models/layer_parts.h"
#include "snug/ops/tensor_parallel.h"
#include "snug/optim/gradient_norm.h"
#include "snug/parallel/data_parallel.h"
#include "snug/parallel/divide.h"
#include "snug/parallel/mesh.h"
#include "snug/parallel/world.h"
#include "snug/replay/streamed_tensors.h"
#include "snug/train/micro_batches.h"
#include "snug/train/team_gradients.h"
#include "snug/train/team_layout.h"

namespace snug::train {

struct Config;

/// The processes that train one model together: replicas of the model, each with a part of every batch (data parallel),
/// of one process or of several that have parts of it (see TeamLayout), whose ranks follow each other. One process that
/// trains alone is a team, too.
class Team {
 public:
  /// Alone.
  Team() = default;
  /// All at once. Throws UsageError, in all of them, where their layouts differ, or are not of as many processes.
  explicit Team(std::shared_ptr<parallel::World> world, const TeamLayout& layout = {});
  /// Those that a launcher has started with this one, when they have met, which takes up to parallel.timeout; alone
  /// where there are none. Throws as parallel::launched(), World::meet() and the constructor.
  static Team of_launcher(const Config& config);

  [[nodiscard]] int rank() const { return world_ ? world_->all()->rank() : 0; }
  [[nodiscard]] int size() const { return world_ ? world_->all()->size() : 1; }
  /// This process writes, and tells.
  [[nodiscard]] bool is_first() const { return rank() == 0; }
  [[nodiscard]] const TeamLayout& layout() const noexcept { return layout_; }
  /// How many there are, and which one this process is in.
  [[nodiscard]] int replicas() const { return size() / layout_.per_replica(); }
  [[nodiscard]] int replica() const { return rank() / layout_.per_replica(); }
  /// The process of a replica that has its loss, or the first of those.
  [[nodiscard]] int teller_of(int replica) const {
    return (replica + 1) * layout_.per_replica() - layout_.context * layout_.tensor;
  }
  /// Processes that draw random numbers of their own: those with parts of the same layers draw the same ones between
  /// these, and are one drawer.
  [[nodiscard]] int drawers() const { return size() / layout_.tensor; }
  [[nodiscard]] int drawer() const { return rank() / layout_.tensor; }
  /// Of the processes that have the same part of the layers, those that have it in shards together, this one among
  /// them: all of these, unless replicas share in groups.
  [[nodiscard]] std::shared_ptr<parallel::ProcessGroup> sharers() const;
  /// Those of this process's replica that have parts of its layers, or of its sequences; nullptr where there are none.
  [[nodiscard]] const ops::LayerGroup& layer_group() const noexcept { return layers_; }
  [[nodiscard]] const ops::LayerGroup& sequence_group() const noexcept { return sequences_; }
  /// Those that have its other stages, with the same parts, in their order; nullptr where there are none.
  [[nodiscard]] std::shared_ptr<parallel::ProcessGroup> pipeline() const;

  /// For recordings and sessions.
  [[nodiscard]] std::shared_ptr<Agreement> agreement() const;
  /// Of the parameters that train, those that more processes have than others.
  struct Held {
    const std::vector<at::Tensor>&
        summands;                           ///< whole in each process of a layer group, with a summand of the gradient
    const std::vector<at::Tensor>& shared;  ///< of the first and the last stage
    const std::vector<models::ParameterPart>& parts;  ///< in a layer group
  };
  /// What adds up the gradients of all processes as long as it lives, and leaves them as parallel.shard says: of each
  /// parameter over those that have the same part of it; `arrived` as in parallel::DataParallelOptions. nullptr for one
  /// alone.
  [[nodiscard]] std::unique_ptr<TeamGradients> gradients(const std::vector<at::Tensor>& trained, const Held& held,
                                                         const Config& config,
                                                         std::vector<parallel::DividedParameter> divided,
                                                         std::function<void(const at::Tensor&)> arrived) const;
  /// Divides the contents of parameters among sharers(), which all of these have alike; they are in `streamed` from
  /// then on, and so are the shards where `shards` says so.
  [[nodiscard]] std::vector<parallel::DividedParameter> divide(const std::vector<at::Tensor>& parameters,
                                                               StreamedTensors& streamed, KeptIn shards) const;
  /// All have the first's.
  void copy_from_first(const std::vector<at::Tensor>& tensors) const;

  /// This process's micro-batches of a batch, which is divided into `accumulate` for each replica: the first ones of
  /// all come first in the batch, then their second ones. Sequences are whole. Throws UsageError, in all processes,
  /// where one of them has no target.
  [[nodiscard]] std::vector<MicroBatch> part_of(const data::Batch& batch, std::int64_t accumulate) const;

  /// What a process says of a step when its gradients are there.
  struct Word {
    bool stops = false;            ///< it has been asked to
    bool saves = false;            ///< it has been asked to save the training state
    std::vector<double> losses{};  ///< of its micro-batches, each its share of the batch's; as many in each process
    std::string random{};          ///< the state of its generator: bytes, as many in each process
  };
  /// Of all, by rank.
  [[nodiscard]] std::vector<Word> tell(const Word& mine) const;
  /// A text of each process, by rank.
  [[nodiscard]] std::vector<std::string> gather_texts(const std::string& mine) const;
  /// This process's part of whole sequences; the same, where they are not in parts.
  [[nodiscard]] data::Batch part_of_sequences(data::Batch batch) const;
  /// What puts together what is in parts: in shards, parts and stages, or in parts and stages of a replica.
  [[nodiscard]] optim::OtherParts all_shards() const;
  [[nodiscard]] optim::OtherParts parts_of_replica() const;
  /// All processes, where there are others.
  [[nodiscard]] parallel::ProcessGroup& group() const { return *world_->all(); }
  /// The same number of numbers of each process, one behind the other by rank.
  [[nodiscard]] std::vector<double> gather(const std::vector<double>& mine) const;
  /// For messages of the others, where this one is missing.
  void doing(const std::string& what) const {
    if (world_) world_->doing(what);
  }
  /// Whether interrupted() says so in any of them.
  [[nodiscard]] bool interrupted_anywhere() const;

 private:
  /// Replicas that have shards together, and groups of them.
  [[nodiscard]] int shard_degree() const { return layout_.shard_degree == 0 ? replicas() : layout_.shard_degree; }
  [[nodiscard]] int copies() const { return replicas() / shard_degree(); }
  [[nodiscard]] std::shared_ptr<parallel::ProcessGroup> ends_of_pipelines() const;
  [[nodiscard]] optim::OtherParts parts_over(const std::shared_ptr<parallel::ProcessGroup>& group) const;

  std::shared_ptr<parallel::World> world_;
  TeamLayout layout_;
  ops::LayerGroup layers_, sequences_;
  std::shared_ptr<parallel::Mesh> mesh_;  // "copy", "data", "pipeline", "context", "tensor"; nullptr for one alone
};

/// Throws UsageError, in all processes, where they have other settings, naming the first: before anything that they do
/// together follows from these. What is each one's own may differ.
void check_same_settings(const Config& config, const Team& team);
/// The same where they have other data, numbers of threads or instructions, or go on from other steps.
void check_same_in_team(const Team& team, const std::string& fingerprint, std::int64_t done, c10::Device device);

}  // namespace snug::train
