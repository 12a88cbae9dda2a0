#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace snug::data {

inline constexpr std::int64_t kNoTarget = -100;  ///< which cross_entropy leaves out
inline constexpr std::int64_t kNoDocument = -1;

/// Token ids on the CPU, int64, all of shape (batch, sequence).
struct Batch {
  at::Tensor input;
  at::Tensor target;  ///< what follows each token of input; in rows of documents kNoTarget at their ends, and padding
  // Of rows that hold several documents; else undefined.
  at::Tensor positions{};  ///< from 0 on in each document, or piece of one; 0 in padding
  at::Tensor documents{};  ///< number of each token's document in the corpus; kNoDocument in padding
};

/// See Prefetcher.
inline std::vector<at::Tensor*> tensors_of(Batch& batch) {
  std::vector<at::Tensor*> all{&batch.input, &batch.target};
  if (batch.documents.defined()) all.insert(all.end(), {&batch.positions, &batch.documents});
  return all;
}

}  // namespace snug::data
