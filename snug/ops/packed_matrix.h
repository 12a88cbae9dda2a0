#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "snug/ops/block_format.h"

namespace snug::ops {

/// A matrix that stays in the blocks in which a GGUF file has it, and is decoded where it is used. Not differentiable.
struct PackedMatrix {
  BlockFormat format;
  at::Tensor blocks;  ///< uint8 (rows, bytes of a row)

  [[nodiscard]] std::int64_t rows() const { return blocks.size(0); }
  [[nodiscard]] std::int64_t columns() const;
};

/// `count` of its rows (dimension 0), or of its columns (1), from `first` on, in memory of its own. Throws Error for
/// columns that are not whole blocks.
PackedMatrix part_of(const PackedMatrix& matrix, std::int64_t dimension, std::int64_t first, std::int64_t count);

/// Of the bytes of a file, a view of them. Throws Error when they are not those of a matrix of that shape.
PackedMatrix packed_matrix(BlockFormat format, const std::vector<std::int64_t>& shape, const at::Tensor& bytes);

/// Decodes the last dimension of blocks, uint8 (..., bytes of a row), to (..., columns) of fp32, fp64, bf16 or fp16, on
/// LibTorch's threads: the operator snug::unpack, CPU only. Bitwise what ggml's own functions give in fp32, and what
/// rounding makes of that.
at::Tensor unpack(const at::Tensor& blocks, BlockFormat format, at::ScalarType dtype = at::kFloat);

/// The rows of a matrix that tokens, int64 of any shape, name: (..., columns) of fp32, and under autocast of its type.
/// Only those rows are decoded.
at::Tensor packed_embedding(const PackedMatrix& matrix, const at::Tensor& tokens);

}  // namespace snug::ops
