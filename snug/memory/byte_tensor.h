#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "snug/base/bytes.h"

namespace snug::memory {

/// `bytes` of a storage, from `offset` on, as a tensor that takes no memory of its own; made without an operator, which
/// somebody might see. The storage must have as many.
at::Tensor byte_tensor(const c10::Storage& storage, Bytes bytes, Bytes offset = 0);

}  // namespace snug::memory
