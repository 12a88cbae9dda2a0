#include "snug/models/context_parts.h"

#include <ATen/ops/cat.h>
#include <fmt/format.h>

#include "snug/base/errors.h"

namespace snug::models {

SequencePieces pieces_of(ContextMethod method, std::int64_t length, int rank, int processes) {
  const std::int64_t pieces = method == ContextMethod::Ring ? 2 * processes : processes;
  if (length % pieces != 0) {
    throw UsageError(
        fmt::format("context parallel: a sequence of {} for {} processes, in {} pieces; use a length that "
                    "is a multiple of that",
                    length, processes, pieces));
  }
  const std::int64_t each = length / pieces;
  if (method == ContextMethod::Heads) return {{rank * each}, each};
  return {{rank * each, (pieces - 1 - rank) * each}, each};
}

at::Tensor take_pieces(const at::Tensor& whole, std::int64_t dimension, const SequencePieces& pieces) {
  std::vector<at::Tensor> parts;
  for (const std::int64_t first : pieces.first) parts.push_back(whole.narrow(dimension, first, pieces.each));
  return parts.size() == 1 ? parts.front() : at::cat(parts, dimension);
}

}  // namespace snug::models
