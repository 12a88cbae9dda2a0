#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <string>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"

namespace snug::record {

/// Names for tensors that error messages may have to name, such as a module's parameters. Process-wide, any thread;
/// names of tensors that are gone are forgotten.
void name_tensors(const std::vector<std::pair<std::string, at::Tensor>>& names);

/// "blocks.3.mlp.weight (1.2 MiB)", or "a tensor of 1.2 MiB" for one without a name.
std::string leaf_name(const c10::StorageImpl* storage, Bytes bytes);

}  // namespace snug::record
