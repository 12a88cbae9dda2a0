#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "snug/parallel/bucket_layout.h"
#include "snug/parallel/buckets.h"
#include "snug/parallel/data_parallel.h"
#include "snug/parallel/process_group.h"
#include "snug/parallel/reduction.h"

namespace snug::parallel {

/// Parameters whose gradients go together, and where they lie then. All must outlive what is made of it.
struct BucketOf {
  const std::vector<at::Tensor>& parameters;
  const Bucket& members;
  const BucketLayout& layout;
};

/// Copies the elements of a gradient to a place, or zeros where there is none. Throws UsageError for a sparse one.
void put(const at::Tensor& place, const at::Tensor& gradient);
/// Zeros where there is no piece.
void clear_between(const at::Tensor& all, const std::vector<Piece>& pieces);
/// As parts of a mean, where that is wanted.
void share(const at::Tensor& gradients, const DataParallelOptions& options, int processes);

/// The gradients of one bucket, from where this process has its own to where it has those of all: views of one tensor.
class BucketGradients {
 public:
  BucketGradients(ProcessGroup& group, const BucketOf& bucket, const DataParallelOptions& options,
                  Reduction::Purpose purpose);

  /// See Reduction.
  void advance() { reduction_.advance(); }
  void finish();

 private:
  at::Tensor gradients_;
  at::Tensor sums_;  // what is handed in: the same, in another type if so wished
  Reduction reduction_;
};

}  // namespace snug::parallel
