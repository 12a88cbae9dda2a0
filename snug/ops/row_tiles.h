#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <variant>

#include "snug/base/bytes.h"
#include "snug/ops/packed_matrix.h"

namespace snug::ops {

/// A matrix (rows, columns) as a weight is kept.
using Matrix = std::variant<at::Tensor, PackedMatrix>;

std::int64_t rows_of(const Matrix& matrix);
std::int64_t columns_of(const Matrix& matrix);

/// Hands over the matrix in groups of rows, in order, in the type asked for. A plain matrix of that type is one group;
/// of any other at most about `bytes` are decoded or cast at once.
void for_each_tile(const Matrix& matrix, at::ScalarType dtype, Bytes bytes,
                   const std::function<void(std::int64_t first_row, const at::Tensor& rows)>& visit);

/// What the operators here decode at once.
inline constexpr Bytes kTileBytes = Bytes{8} << 20;

}  // namespace snug::ops
