#include "snug/state/gguf.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <cstring>
#include <memory>

#include "snug/ops/packed_matrix.h"
#include "snug/state/mapped_weights.h"

namespace snug::state {
namespace {

/// What read() returns.
at::ScalarType dtype_of(ops::BlockFormat format) {
  switch (format) {
    case ops::BlockFormat::F16:
      return at::kHalf;
    case ops::BlockFormat::BF16:
      return at::kBFloat16;
    default:
      return at::kFloat;
  }
}

at::Tensor decoded(const GgufBlocks& blocks) {
  const at::ScalarType dtype = dtype_of(blocks.format);
  const std::span<const std::uint8_t> from(blocks.bytes.const_data_ptr<std::uint8_t>(), blocks.bytes.nbytes());
  if (blocks.format == ops::BlockFormat::F16 || blocks.format == ops::BlockFormat::BF16) {
    at::Tensor out = at::empty(blocks.shape, at::TensorOptions().dtype(dtype));
    if (!from.empty()) std::memcpy(out.mutable_data_ptr(), from.data(), from.size());
    return out;
  }
  return ops::unpack(blocks.bytes, blocks.format).view(blocks.shape);
}

}  // namespace

Gguf open_gguf(const std::filesystem::path& path) {
  const auto file = map_weights(path);
  Gguf all{parse_gguf_header(file->bytes(), path.string()), {}, {}};
  for (const GgufEntry& e : all.header.tensors) {
    auto* const data = const_cast<std::uint8_t*>(file->bytes().data() + e.begin);
    const auto size = static_cast<std::int64_t>(e.end - e.begin);
    const GgufBlocks blocks{e.format, e.shape,
                            at::from_blob(
                                data, {size}, [file](void*) {}, at::TensorOptions().dtype(at::kByte))};
    all.blocks.emplace(e.name, blocks);
    all.tensors.emplace(e.name, StoredTensor{dtype_of(e.format), e.shape, [blocks] { return decoded(blocks); }});
  }
  return all;
}

}  // namespace snug::state
