#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace snug::described {

/// Replaces the arguments of a call, meta tensors, by the results that the operator makes of them, where LibTorch says
/// in no C++ what sizes they have, or in another way than kernels of CUDA make them. False: there is no rule for it,
/// and nothing is done.
bool apply_shape_rule(const c10::OperatorHandle& op, torch::jit::Stack& stack);
/// Whether there is one.
bool has_shape_rule(const c10::OperatorName& name);

}  // namespace snug::described
