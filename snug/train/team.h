#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "snug/base/agreement.h"
#include "snug/optim/gradient_norm.h"
#include "snug/parallel/data_parallel.h"
#include "snug/parallel/divide.h"
#include "snug/parallel/world.h"
#include "snug/replay/streamed_tensors.h"
#include "snug/train/micro_batches.h"

namespace snug::train {

struct Config;

/// The processes that train one model together, each with a part of every batch (data parallel). One that trains alone
/// is a team, too.
class Team {
 public:
  /// Alone.
  Team() = default;
  explicit Team(std::shared_ptr<parallel::World> world) : world_(std::move(world)) {}
  /// Those that a launcher has started with this one, when they have met, which takes up to parallel.timeout; alone
  /// where there are none. Throws as parallel::launched() and World::meet().
  static Team of_launcher(const Config& config);

  [[nodiscard]] int rank() const { return world_ ? world_->all()->rank() : 0; }
  [[nodiscard]] int size() const { return world_ ? world_->all()->size() : 1; }
  /// This process writes, and tells.
  [[nodiscard]] bool is_first() const { return rank() == 0; }

  /// For recordings and sessions.
  [[nodiscard]] std::shared_ptr<Agreement> agreement() const;
  /// What adds up the gradients of all processes as long as it lives, and leaves them as parallel.shard says; nullptr
  /// for one alone.
  [[nodiscard]] std::unique_ptr<parallel::DataParallel> data_parallel(
      const std::vector<at::Tensor>& parameters, const Config& config,
      std::vector<parallel::DividedParameter> divided) const;
  /// Divides the contents of parameters, which all have alike, among the processes; they are in `streamed` from then
  /// on.
  [[nodiscard]] std::vector<parallel::DividedParameter> divide(const std::vector<at::Tensor>& parameters,
                                                               StreamedTensors& streamed) const;
  /// All have the first's.
  void copy_from_first(const std::vector<at::Tensor>& tensors) const;

  /// This process's micro-batches of a batch, which is divided into `accumulate` for each: the first ones of all
  /// processes come first in the batch, by rank, then their second ones. Throws UsageError, in all processes, where one
  /// of them has no target.
  [[nodiscard]] std::vector<MicroBatch> part_of(const data::Batch& batch, std::int64_t accumulate) const;

  /// What a process says of a step when its gradients are there.
  struct Word {
    bool stops = false;            ///< it has been asked to
    std::vector<double> losses{};  ///< of its micro-batches, each its share of the batch's; as many in each process
    std::string random{};          ///< the state of its generator: bytes, as many in each process
  };
  /// Of all, by rank.
  [[nodiscard]] std::vector<Word> tell(const Word& mine) const;
  /// A text of each process, by rank.
  [[nodiscard]] std::vector<std::string> gather_texts(const std::string& mine) const;
  /// What parts of gradients contribute in the others.
  [[nodiscard]] optim::OtherParts other_parts() const;
  /// All processes, where there are others.
  [[nodiscard]] parallel::ProcessGroup& group() const { return *world_->all(); }
  /// The same number of numbers of each process, one behind the other by rank.
  [[nodiscard]] std::vector<double> gather(const std::vector<double>& mine) const;
  /// Whether interrupted() says so in any of them.
  [[nodiscard]] bool interrupted_anywhere() const;

 private:
  std::shared_ptr<parallel::World> world_;
};

/// Throws UsageError, in all processes, where they are not about to do the same: they have other settings, data,
/// numbers of threads or instructions, or go on from other steps.
void check_same_in_team(const Config& config, const Team& team, const std::string& fingerprint, std::int64_t done);

/// Throws UsageError for what several processes cannot do yet, or not together.
void check_for_team(const Config& config, const Team& team);

}  // namespace snug::train
