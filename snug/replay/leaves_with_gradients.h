#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace snug::replay {

/// Adds those leaves that are not among `all`: gradients may be where autograd does not put them, in shards of
/// parameters.
void add_missing(const std::vector<at::Tensor>& leaves, std::vector<at::Tensor>& all);

/// Of either those that have a gradient now, each once.
std::vector<at::Tensor> with_gradients(const std::vector<at::Tensor>& leaves, const std::vector<at::Tensor>& others);

}  // namespace snug::replay
