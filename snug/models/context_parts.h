#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "snug/models/context_method.h"
#include "snug/ops/tensor_parallel.h"

namespace snug::models {

/// Where pieces of a sequence begin that one process has, one behind the other, of `each` positions.
struct SequencePieces {
  std::vector<std::int64_t> first;
  std::int64_t each = 0;
};

/// What the process of that rank has of `length` positions: by heads one piece, in a ring one of the beginning and one
/// of the end. Throws UsageError where they cannot be divided evenly.
SequencePieces pieces_of(ContextMethod method, std::int64_t length, int rank, int processes);

/// The pieces of a tensor along that dimension; a view of it where there is one.
at::Tensor take_pieces(const at::Tensor& whole, std::int64_t dimension, const SequencePieces& pieces);

/// Processes that have a part of every sequence each, as the blocks of a model see them; none where these are whole.
struct Context {
  ops::LayerGroup group{};
  ContextMethod method = ContextMethod::Heads;
  explicit operator bool() const { return group != nullptr; }

  /// Of sequences of which each process has that part.
  [[nodiscard]] std::int64_t whole(std::int64_t part) const { return group->size() * part; }
  /// Where this process's part of them lies.
  [[nodiscard]] SequencePieces pieces(std::int64_t part) const {
    return pieces_of(method, whole(part), group->rank(), group->size());
  }
};

}  // namespace snug::models
