#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "snug/parallel/bucket_gradients.h"
#include "snug/parallel/data_parallel.h"
#include "snug/parallel/process_group.h"
#include "snug/parallel/reduction.h"

namespace snug::parallel {

/// A piece of a parameter that this process updates, and the tensor that it is updated by.
struct Owned {
  Piece piece;
  at::Tensor tensor;
  bool had_gradient = false;  ///< before the pass that goes on: what comes is added to it
};

/// The gradients of a strip of one bucket, from where this process has its own to where it has those of all of its
/// pieces: added to the gradients that the pieces had, row by row, where they had any. A parameter whose elements are
/// all in this strip, or in those before it, has no gradient from then on.
class BucketShards {
 public:
  /// `owned` and `options` must outlive it.
  BucketShards(ProcessGroup& group, const BucketOf& bucket, const Strip& strip, const std::vector<Owned>& owned,
               const DataParallelOptions& options, Reduction::Purpose purpose);

  /// Waits for what other processes have of them, and adds it up.
  void advance();
  void finish() { advance(); }

 private:
  const std::vector<Owned>* owned_;
  const DataParallelOptions* options_;
  Strip strip_;
  bool is_last_;  // of its bucket
  at::Tensor handed_in_, received_;
  ProcessGroup::Begun begun_;
};

/// The contents of a strip of one bucket's parameters, from where each process has those of its pieces to where all
/// have all.
class BucketWeights {
 public:
  BucketWeights(ProcessGroup& group, const BucketOf& bucket, const Strip& strip, const std::vector<Owned>& owned,
                Reduction::Purpose purpose);

  void finish();

 private:
  BucketOf bucket_;
  Strip strip_;
  Reduction::Purpose purpose_;
  at::Tensor all_;
  ProcessGroup::Begun begun_;
};

}  // namespace snug::parallel
