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

/// What becomes of gradients that have been copied.
enum class Copied : std::uint8_t {
  Views,  ///< they are views of where they have been copied to
  Gone    ///< their parameters have none
};

/// Copies the gradients of a bucket's parameters into one tensor, one after the other, with zeros for those that there
/// are not and in between; as parts of a mean where that is wanted. Throws UsageError for a sparse one.
at::Tensor packed_gradients(const BucketOf& bucket, const DataParallelOptions& options, int processes, Copied copied);

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
