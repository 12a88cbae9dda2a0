#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <vector>

#include "snug/record/tape.h"

namespace snug::replay {

/// The leaves that a backward pass from `roots` may give gradients to: those at the end of the autograd graph, and
/// those that the forward pass has `read`, as a function that differentiates in backward for itself hides what it is
/// made of.
std::vector<at::Tensor> leaves_of(const torch::autograd::edge_list& roots, const std::vector<at::Tensor>& read);

/// Those of them that the step did not create: parameters, and inputs that require a gradient.
std::vector<at::Tensor> parameters_of(const record::Tape& tape, const torch::autograd::edge_list& roots,
                                      const std::vector<at::Tensor>& read);

/// Adds those leaves that are not among `all`: gradients may be where autograd does not put them, in shards of
/// parameters.
void add_missing(const std::vector<at::Tensor>& leaves, std::vector<at::Tensor>& all);

/// Of either those that have a gradient now, each once.
std::vector<at::Tensor> with_gradients(const std::vector<at::Tensor>& leaves, const std::vector<at::Tensor>& others);

}  // namespace snug::replay
