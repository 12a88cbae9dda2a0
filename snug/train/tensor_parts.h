#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "snug/state/divided_tensors.h"
#include "snug/state/training_state.h"

namespace snug::train {

class Experiment;

/// What this process has of a model's tensors, and of what its optimizer keeps, where others have the rest: by the
/// names and shapes of the whole. The same tensors as long as the experiment lives.
std::vector<state::TensorPart> parts_of(const Experiment& experiment, const state::NamedTensors& tensors);
std::vector<state::TensorPart> parts_of_optimizer(Experiment& experiment);

}  // namespace snug::train
