#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "snug/parallel/buckets.h"
#include "snug/parallel/data_parallel.h"
#include "snug/parallel/process_group.h"
#include "snug/parallel/reduction.h"

namespace snug::parallel {

/// The gradients of one bucket, from where this process has its own to where it has those of all.
class BucketGradients {
 public:
  /// Copies the gradients of the bucket's parameters into one tensor, of which they are views from then on, and hands
  /// that in. Where there is none, as if it were zero. Parameters and group must outlive it.
  BucketGradients(ProcessGroup& group, const std::vector<at::Tensor>& parameters, const Bucket& bucket,
                  const DataParallelOptions& options, Reduction::Purpose purpose);

  /// See Reduction.
  void advance() { reduction_.advance(); }
  /// Those that no process has are none again.
  void finish();

 private:
  const std::vector<at::Tensor>* parameters_;
  const Bucket* bucket_;
  at::Tensor gradients_;  // one behind the other, then for each how many processes have one, then room
  at::Tensor sums_;       // what is handed in: the same, in another type if so wished
  Reduction reduction_;
};

}  // namespace snug::parallel
