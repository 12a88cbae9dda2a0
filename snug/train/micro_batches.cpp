#include "snug/train/micro_batches.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include "snug/base/errors.h"

namespace snug::train {
namespace {

double targets_of(const data::Batch& batch) { return batch.target.ne(data::kNoTarget).sum().item<double>(); }

data::Batch rows_of(data::Batch batch, std::int64_t first, std::int64_t count) {
  for (at::Tensor* const tensor : tensors_of(batch)) *tensor = tensor->narrow(0, first, count);
  return batch;
}

}  // namespace

std::vector<MicroBatch> micro_batches(const data::Batch& batch, std::int64_t parts) {
  const double all = targets_of(batch);
  if (all == 0) {
    throw UsageError(
        fmt::format("train: all {} targets of a batch are {}, which do not count, so that it has no loss; check the "
                    "data, or use a larger train.batch",
                    batch.target.numel(), data::kNoTarget));
  }
  if (parts == 1) return {{batch, 1.0}};
  const std::int64_t rows = batch.input.size(0) / parts;
  std::vector<MicroBatch> found;
  for (std::int64_t part = 0; part < parts; ++part) {
    MicroBatch micro{rows_of(batch, part * rows, rows), 0};
    micro.share = targets_of(micro.batch) / all;
    if (micro.share > 0) found.push_back(std::move(micro));
  }
  return found;
}

}  // namespace snug::train
