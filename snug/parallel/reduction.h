#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "snug/parallel/process_group.h"

namespace snug::parallel {

/// In which order the elements of a group's processes are added up.
enum class Order : std::uint8_t {
  ByRank,  ///< rank 0's and 1's, then 2's, ...: the bits of one process that adds up what they have in that order, on
           ///< any hardware and whatever carries it
  Anyhow,  ///< as the backend does, in fewer steps
};

/// Adds up what each process has, in place, in parts that go on beside what the caller computes in between. The tensor
/// must have a multiple of the group's size of elements in one dimension. By rank it takes as much memory again until
/// it is over.
class Reduction {
 public:
  /// What it is done for.
  enum class Purpose : std::uint8_t {
    Sums,
    Trial  ///< the memory that it takes: nothing is handed in or gathered, and there are no sums (see
           ///< record::TrialGradients)
  };
  Reduction(ProcessGroup& group, at::Tensor tensor, Order order, Purpose purpose);

  /// Goes on to its second half, if it is not there: waits for the first. Each process does it in the same order.
  void advance();
  /// Waits until the sums are there.
  void finish();

 private:
  ProcessGroup::Begun handed_in(const Collective& what);

  ProcessGroup& group_;
  Purpose purpose_;
  at::Tensor tensor_, received_;
  ProcessGroup::Begun begun_;
};

/// The sum of what all have, of any size, by rank: new, of its sizes.
at::Tensor sum_by_rank(ProcessGroup& group, const at::Tensor& mine);

}  // namespace snug::parallel
