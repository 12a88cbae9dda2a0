#pragma once

#include <cstdint>
#include <vector>

#include "snug/data/batch.h"

namespace snug::train {

/// Rows of a step's batch that go forward and backward together, as views of it.
struct MicroBatch {
  data::Batch batch;
  double share = 1;  ///< of the batch's targets: the mean over all of them is the sum of shares times means
};

/// A batch in `parts` of equal rows, which must divide it; without those that have no target. Weighed by targets and
/// not by rows, the sum of their losses, and of gradients, is that of the whole batch, however many tokens a row has.
/// Throws UsageError for a batch without any target.
std::vector<MicroBatch> micro_batches(const data::Batch& batch, std::int64_t parts);

}  // namespace snug::train
