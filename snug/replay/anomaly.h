#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <optional>
#include <string>

#include "snug/record/tape.h"
#include "snug/replay/record_step.h"

namespace snug::replay {

/// From now on a recorded operator whose result holds a NaN or an infinity throws Error, naming the operator, its
/// module and the shape of the result, in forward and when it is replayed. Slow: looks at every result.
void watch_operators(record::Tape& tape);

/// The same for the backward pass from `roots`, which must not have begun: a node whose gradients hold a NaN or an
/// infinity throws, naming the node and the operator that it belongs to.
void watch_backward(const torch::autograd::edge_list& roots, const std::shared_ptr<record::Tape>& tape);

/// Runs `forward`, without gradients, and tells which operator's result was the first to hold a NaN or an infinity.
/// nullopt when all are finite. For finding the cause of a non-finite loss.
std::optional<std::string> first_non_finite(const Forward& forward);

}  // namespace snug::replay
