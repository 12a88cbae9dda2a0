#pragma once

#include "snug/models/context_method.h"

namespace snug::train {

struct ParallelConfig;

/// How many processes of a team have parts of the same rows: of layers (tensor parallel), of sequences (context
/// parallel), or some of the layers (pipeline). The rest of their number has rows of its own (data parallel).
struct TeamLayout {
  int tensor = 1;
  int context = 1;
  models::ContextMethod context_by = models::ContextMethod::Heads;
  int pipeline = 1;
  models::Between between = models::Between::Whole;
  /// Of the replicas, those that divide among them what is in shards, neighbours by rank; others have it again (hybrid
  /// shard). 0: all of them.
  int shard_degree = 0;

  /// Processes that have the same rows.
  [[nodiscard]] int per_replica() const { return tensor * context * pipeline; }
  bool operator==(const TeamLayout&) const = default;
};

[[nodiscard]] TeamLayout layout_of(const ParallelConfig& config);

}  // namespace snug::train
