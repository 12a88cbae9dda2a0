#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "snug/parallel/data_parallel.h"
#include "snug/parallel/process_group.h"

namespace snug::train {

/// What adds up the gradients of a model's parameters with other processes, as long as it lives: each parameter's over
/// the group of its sum, which need not be that of another (see parallel::DataParallel).
class TeamGradients {
 public:
  struct Sum {
    std::vector<at::Tensor> parameters;  ///< those that want no gradient are left out
    std::shared_ptr<parallel::ProcessGroup> over;
    /// With shards: those that have the same ones of other groups (hybrid shard); nullptr: there are none.
    std::shared_ptr<parallel::ProcessGroup> copies = nullptr;
  };
  /// `trained`: those of all sums, each once. Sums of nothing are left out, and those of one process alone that leave
  /// gradients whole.
  TeamGradients(const std::vector<at::Tensor>& trained, const std::vector<Sum>& sums,
                const parallel::DataParallelOptions& options);

  /// As parallel::DataParallel::Accumulating, for all of them.
  class Accumulating {
   public:
    explicit Accumulating(TeamGradients& of);

   private:
    std::vector<std::unique_ptr<parallel::DataParallel::Accumulating>> all_;
  };

  /// This process's, in the order of `trained` and by their place there; none where gradients are left whole.
  [[nodiscard]] const std::vector<parallel::Shard>& shards() const noexcept { return shards_; }
  /// As parallel::DataParallel::bytes_of_shards().
  [[nodiscard]] Bytes bytes_of_shards(int rank) const;
  /// As parallel::DataParallel::hand_in().
  void hand_in();
  /// Behind a step's last pass: gradients of shards are those of all copies from then on.
  void add_up_copies(parallel::Reduction::Purpose purpose);
  /// As parallel::DataParallel::gather().
  void gather(parallel::Reduction::Purpose purpose);

 private:
  std::vector<std::unique_ptr<parallel::DataParallel>> all_, over_copies_;
  std::vector<parallel::Shard> shards_;
};

}  // namespace snug::train
