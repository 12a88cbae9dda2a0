#pragma once

#include <ATen/core/Tensor.h>

namespace snug::optim {

/// Of a type in which an update of the size of a learning rate rounds to nothing.
inline bool has_few_bits(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf;
}

}  // namespace snug::optim
