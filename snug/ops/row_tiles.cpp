#include "snug/ops/row_tiles.h"

#include <torch/types.h>

#include <algorithm>

namespace snug::ops {
namespace {

at::Tensor rows_as(const at::Tensor& matrix, std::int64_t first, std::int64_t count, at::ScalarType dtype) {
  return matrix.narrow(0, first, count).to(dtype);
}

at::Tensor rows_as(const PackedMatrix& matrix, std::int64_t first, std::int64_t count, at::ScalarType dtype) {
  return unpack(matrix.blocks.narrow(0, first, count), matrix.format, dtype);
}

}  // namespace

std::int64_t rows_of(const Matrix& matrix) {
  const auto* const plain = std::get_if<at::Tensor>(&matrix);
  return plain != nullptr ? plain->size(0) : std::get<PackedMatrix>(matrix).rows();
}

std::int64_t columns_of(const Matrix& matrix) {
  const auto* const plain = std::get_if<at::Tensor>(&matrix);
  return plain != nullptr ? plain->size(1) : std::get<PackedMatrix>(matrix).columns();
}

void for_each_tile(const Matrix& matrix, at::ScalarType dtype, Bytes bytes,
                   const std::function<void(std::int64_t first_row, const at::Tensor& rows)>& visit) {
  const std::int64_t rows = rows_of(matrix);
  const auto* const plain = std::get_if<at::Tensor>(&matrix);
  const bool as_it_is = plain != nullptr && plain->scalar_type() == dtype;
  const auto row_bytes =
      std::max<std::int64_t>(columns_of(matrix), 1) * static_cast<std::int64_t>(c10::elementSize(dtype));
  const std::int64_t step = as_it_is ? std::max<std::int64_t>(rows, 1) : std::max<std::int64_t>(bytes / row_bytes, 1);
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t count = std::min(step, rows - first);
    visit(first, std::visit([&](const auto& m) { return rows_as(m, first, count, dtype); }, matrix));
  }
}

}  // namespace snug::ops
