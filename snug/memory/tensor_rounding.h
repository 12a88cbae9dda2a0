#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

#include "snug/base/bytes.h"
#include "snug/memory/codec.h"
#include "snug/memory/tensor_pieces.h"

// The lossy codecs of tensors: see tensor_codec.h. A code is as long as code_bytes() says.
namespace snug::memory {

void encode_rounded(Codec codec, std::size_t element, const at::Tensor& contents, const at::Tensor& to, Fits& fits);
void decode_rounded(Codec codec, std::size_t element, const at::Tensor& from, const at::Tensor& contents);

}  // namespace snug::memory
