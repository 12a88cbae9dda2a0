#include "snug/ops/packed_matrix.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/library.h>
#include <torch/types.h>

#include <algorithm>

#include "snug/base/errors.h"
#include "snug/memory/parallel_for.h"
#include "snug/ops/cpu_kernels.h"
#include "snug/ops/registered.h"

namespace snug::ops {
namespace {

constexpr std::int64_t kNumbersATask = 32'768;

std::int64_t columns_of(std::int64_t bytes, const BlockLayout& layout) {
  return bytes / static_cast<std::int64_t>(layout.bytes) * static_cast<std::int64_t>(layout.elements);
}

at::Tensor unpack_on_cpu(const at::Tensor& blocks, std::int64_t number, at::ScalarType dtype) {
  const BlockLayout* const layout = find_block_layout(static_cast<std::uint32_t>(number));
  if (layout == nullptr) throw Error(fmt::format("snug::unpack: there is no block format {}", number));
  const at::Tensor from = blocks.contiguous();
  auto sizes = from.sizes().vec();
  sizes.back() = columns_of(sizes.back(), *layout);
  if (!kernels_take(dtype)) throw Error(fmt::format("snug::unpack: there are no kernels for {}", c10::toString(dtype)));
  at::Tensor out = at::empty(sizes, from.options().dtype(dtype));
  const kernels::PackedNumbers all{
      .format = layout->format, .blocks = from.const_data_ptr<std::uint8_t>(), .out = out.mutable_data_ptr()};
  const auto bytes = static_cast<std::int64_t>(layout->bytes), elements = static_cast<std::int64_t>(layout->elements);
  memory::parallel_for(0, from.numel() / bytes, std::max<std::int64_t>(kNumbersATask / elements, 1),
                       [&](std::int64_t first, std::int64_t last) { cpu_kernels().decode(dtype, all, first, last); });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(snug, library) { library.def("unpack(Tensor blocks, int format, ScalarType dtype) -> Tensor"); }
TORCH_LIBRARY_IMPL(snug, CPU, library) { library.impl("unpack", unpack_on_cpu); }

std::int64_t PackedMatrix::columns() const { return columns_of(blocks.size(1), block_layout(format)); }

PackedMatrix part_of(const PackedMatrix& matrix, std::int64_t dimension, std::int64_t first, std::int64_t count) {
  if (dimension == 0) return {matrix.format, matrix.blocks.narrow(0, first, count).clone(at::MemoryFormat::Contiguous)};
  const BlockLayout& layout = block_layout(matrix.format);
  const auto elements = static_cast<std::int64_t>(layout.elements), bytes = static_cast<std::int64_t>(layout.bytes);
  if (first % elements != 0 || count % elements != 0) {
    throw Error(fmt::format("packed matrix: columns {} to {} are not of whole blocks of {}, as {} has them", first,
                            first + count, elements, layout.name));
  }
  return {
      matrix.format,
      matrix.blocks.narrow(1, first / elements * bytes, count / elements * bytes).clone(at::MemoryFormat::Contiguous)};
}

PackedMatrix packed_matrix(BlockFormat format, const std::vector<std::int64_t>& shape, const at::Tensor& bytes) {
  const BlockLayout& layout = block_layout(format);
  if (shape.size() != 2 || shape[0] < 1 || bytes.numel() % shape[0] != 0 ||
      columns_of(bytes.numel() / shape[0], layout) != shape[1]) {
    throw Error(fmt::format("packed matrix: {} bytes in {} are none of shape {}", bytes.numel(), layout.name,
                            fmt::join(shape, "x")));
  }
  return {format, bytes.view({shape[0], -1})};
}

at::Tensor unpack(const at::Tensor& blocks, BlockFormat format, at::ScalarType dtype) {
  static const auto op = operator_of<at::Tensor(const at::Tensor&, std::int64_t, at::ScalarType)>("snug::unpack");
  return op.call(blocks, static_cast<std::int64_t>(format), dtype);
}

at::Tensor packed_embedding(const PackedMatrix& matrix, const at::Tensor& tokens) {
  auto sizes = tokens.sizes().vec();
  sizes.push_back(-1);
  const c10::DeviceType device = tokens.device().type();
  const at::ScalarType dtype =
      at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device) : at::kFloat;
  return unpack(matrix.blocks.index_select(0, tokens.flatten()), matrix.format, dtype).view(sizes);
}

}  // namespace snug::ops
