#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "snug/ops/row_tiles.h"
#include "snug/ops/tensor_group.h"

/// What is done where a layer's parts begin, and where they end (Shoeybi et al. 2019, arXiv:1909.08053; with sequences
/// in parts in between, Korthikanti et al. 2022, arXiv:2205.05198). All processes of the group call them alike, in the
/// forward pass and, by autograd, in the backward pass. What they make stays, or a plan that all have has all of them
/// make it again.
namespace snug::ops {

using LayerGroup = std::shared_ptr<TensorGroup>;

/// x, which all have alike and of which each goes on with parts of its own: gradients are added up.
at::Tensor enter_parts(const at::Tensor& x, const LayerGroup& group);
/// The sum of what all have. All go on alike: the gradient is the same for all.
at::Tensor leave_parts(const at::Tensor& x, const LayerGroup& group);

/// As enter_parts() of what all have parts of, along that dimension.
at::Tensor enter_parts_from(const at::Tensor& part, std::int64_t dimension, const LayerGroup& group);
/// This process's part of the sum, along that dimension.
at::Tensor leave_parts_to(const at::Tensor& x, std::int64_t dimension, const LayerGroup& group);

/// This process's part of what all have alike, along that dimension; of the gradient all have all.
at::Tensor part_of(const at::Tensor& x, std::int64_t dimension, const LayerGroup& group);
/// All parts, which all go on with alike.
at::Tensor all_parts(const at::Tensor& part, std::int64_t dimension, const LayerGroup& group);

/// x, which all have alike, and of which a plan may keep this process's part alone: all gather it where a replay needs
/// it (partitioned activations: Rajbhandari et al. 2020, arXiv:1910.02054, section 6.1). Its elements are to be divided
/// evenly. Of a step without gradients, x itself. The first of each size are sent and compared in the forward pass,
/// too: throws Error, in all, where x is not the same in all.
at::Tensor keep_in_parts(const at::Tensor& x, const LayerGroup& group);
/// The part of it, and x again of that, where these are of two modules.
at::Tensor part_to_keep(const at::Tensor& x, const LayerGroup& group);
at::Tensor keep_in_parts(const at::Tensor& x, const at::Tensor& part, const LayerGroup& group);

/// What is whole along `divided` and in parts along `gathered` the other way round, as attention over all of a sequence
/// by some of the heads (Jacobs et al. 2023, arXiv:2309.14509).
at::Tensor exchange_parts(const at::Tensor& x, std::int64_t divided, std::int64_t gathered, const LayerGroup& group);

/// What a process has of a vocabulary: rows from `first` on.
struct VocabularyPart {
  std::int64_t first = 0;
  std::int64_t all = 0;  ///< how many the whole one has
};

/// Vectors of tokens, int64 of any shape, where each process has some of the vocabulary's rows: (..., width), which are
/// to be added up (leave_parts()). Throws UsageError, on a CPU, for a token that is not in the vocabulary.
at::Tensor embedding_in_parts(const Matrix& matrix, const at::Tensor& tokens, const VocabularyPart& part);

/// Mean cross-entropy in nats of logits (..., some of the vocabulary) against `targets`, int64 of the other dimensions,
/// of the whole vocabulary; those of -100 do not count. A scalar, fp32, the same in all. The backward pass needs no
/// other process. Not differentiable twice. Throws UsageError, on a CPU, for a target that is not in the vocabulary.
at::Tensor loss_in_parts(const at::Tensor& logits, const at::Tensor& targets, const VocabularyPart& part,
                         const LayerGroup& group);

}  // namespace snug::ops
