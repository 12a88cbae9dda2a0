#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

#include "snug/base/bytes.h"
#include "snug/memory/codec.h"
#include "snug/memory/tensor_pieces.h"

// The lossy codecs of tensors: see tensor_codec.h.
namespace snug::memory {

[[nodiscard]] Bytes rounded_tensor_bytes(Codec codec, std::int64_t numbers);
void encode_rounded(Codec codec, std::size_t element, const at::Tensor& contents, const at::Tensor& to, Fits& fits);
void decode_rounded(Codec codec, std::size_t element, const at::Tensor& from, const at::Tensor& contents);

}  // namespace snug::memory
