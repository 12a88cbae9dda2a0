#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/parallel/process_group.h"
#include "snug/parallel/reduction.h"

namespace snug::parallel {

/// A parameter whose contents each process has a shard of, evenly (see EvenShards).
struct DividedParameter {
  at::Tensor parameter;
  at::Tensor shard;  ///< this process's; of no elements where it has none
};

struct DataParallelOptions {
  /// What becomes of the gradients of all processes.
  enum class Combine : std::uint8_t {
    Mean,  ///< each is divided by their number first, as DistributedDataParallel does: of losses that are means
    Sum,   ///< of losses that are shares of one
  };
  Combine combine = Combine::Mean;
  Order order = Order::ByRank;
  /// Where the gradients of all processes are, behind a pass.
  enum class Leaves : std::uint8_t {
    Gradients,  ///< in each process, of all parameters
    Shards,     ///< each process has those of its shards alone, and parameters have none (ZeRO, see DataParallel)
  };
  Leaves leaves = Leaves::Gradients;
  /// With shards: parameters whose contents are in shards themselves (ZeRO 3, see divide()), which are updated there.
  std::vector<DividedParameter> divided = {};
  /// Gradients that go together: with fewer bytes more of them overlap with the backward pass, at more calls; up to
  /// four times as many are in memory beside the gradients, or eight where they are added up in a wider type. None: a
  /// sixteenth of all, within 64 KiB and 25 MiB. With shards a larger parameter goes in strips, of up to twice as many
  /// bytes each.
  std::optional<Bytes> bucket = {};
  /// The type in which they are added up; none: that of each gradient.
  std::optional<at::ScalarType> reduce_in = {};
  /// With shards: told of each, in a backward pass, where it has its gradient of all processes; then that may leave
  /// (StreamedTensors::take_gradient).
  std::function<void(const at::Tensor& shard)> arrived = {};
};

/// A part of a parameter that one process updates, and no other.
struct Shard {
  at::Tensor tensor;       ///< a leaf that is a view of it, in one dimension: an optimizer's parameter
  at::Tensor of;           ///< the parameter
  std::size_t index = 0;   ///< of the parameter, where it comes first in the list that was given
  std::int64_t first = 0;  ///< element of it that the shard begins with
};

/// Processes that train one model, each on data of its own: while it lives, the gradients that a backward pass leaves
/// are those of all processes together, and the same bits in each. They are handed in bucket by bucket as they are
/// made, and are there when backward() returns; then they are views of their buckets. All processes go backward equally
/// often, and reach the same parameters in total: what none of them reaches has no gradient, what some do not is as if
/// theirs were zero there; one whose pass reaches none calls hand_in(). Gradients of a pass that threw are of no
/// use; another one may follow where it has thrown in all processes at the same place. Else they would wait for each
/// other: end(), of the group, tells the others at once. Sparse gradients are refused. Steps that fit() and sessions
/// record are tried out by each process alone: the same memory is taken, and nothing is handed in. One thread at a
/// time.
///
/// Where gradients are left in shards, each process updates a part of the model: it makes its optimizer of shards(),
/// and calls gather() behind each of its steps. So what optimizers keep is divided among the processes, and gradients
/// are from where they have been handed in (ZeRO, Rajbhandari et al. 2020, arXiv:1910.02054): stage 1 with
/// micro-batches under Accumulating, stage 2 without, where each pass adds what all processes have to the gradients of
/// the shards: the bits of one process that adds up the first micro-batch of each, then the second of each, ...
/// With several groups that have shards of all of it each (hybrid shard, as of one machine each), a second one over
/// the processes with the same shard adds up the gradients of shards(), as its parameters, by hand_in() behind a step's
/// last pass.
///
/// The semantics are those of torch.nn.parallel.DistributedDataParallel with find_unused_parameters and
/// gradient_as_bucket_view (Li et al. 2020, arXiv:2006.15704), but for Order::ByRank.
class DataParallel {
 public:
  /// Parameters of one model, the same in each process: see copy_from_first(). Those that want no gradient are left
  /// out, and one that comes twice counts once. Throws UsageError for what is no parameter, and in shards for one that
  /// is not contiguous.
  DataParallel(const std::vector<at::Tensor>& parameters, std::shared_ptr<ProcessGroup> group,
               const DataParallelOptions& options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// As if the gradients that are there, or none, were what a pass has left: of passes under Accumulating, behind the
  /// last of them, or of a process that has nothing to go backward from where the others do. Nothing under
  /// Accumulating. A trial takes the same memory, and hands in nothing.
  void hand_in(Reduction::Purpose purpose = Reduction::Purpose::Sums);

  /// While one lives, backward passes leave this process's own gradients, which those of the first pass after it are
  /// added to: of all micro-batches of a step but the last (DistributedDataParallel.no_sync).
  class Accumulating {
   public:
    explicit Accumulating(DataParallel& of);
    ~Accumulating();
    Accumulating(const Accumulating&) = delete;
    Accumulating& operator=(const Accumulating&) = delete;

   private:
    DataParallel& of_;
  };

  /// This process's, in the order of the parameters; none where gradients are left whole.
  [[nodiscard]] const std::vector<Shard>& shards() const noexcept;
  /// Where all processes have updated their shards: all parameters that are not divided are whole again in each, and
  /// shards of the others may be fetched. Nothing where gradients are left whole. Takes up to two buckets, or strips,
  /// of memory meanwhile. A trial takes the same, and changes nothing.
  void gather(Reduction::Purpose purpose = Reduction::Purpose::Sums);

  struct Counts {
    std::int64_t passes = 0;   ///< backward passes whose gradients were handed in
    std::int64_t buckets = 0;  ///< of all of them
    std::int64_t early = 0;    ///< of those: before the pass was over
  };
  /// Of shards that the process of that rank among all processes has: 0 where it is none of the group.
  [[nodiscard]] Bytes bytes_of_shards(int member) const;
  [[nodiscard]] const Counts& counts() const noexcept;
  [[nodiscard]] std::size_t buckets() const noexcept;

 private:
  class Passes;
  std::shared_ptr<Passes> passes_;  // its hooks hold it too
};

/// Every process has the contents that the first has, and so the same bits.
void copy_from_first(ProcessGroup& group, const std::vector<at::Tensor>& tensors);

}  // namespace snug::parallel
