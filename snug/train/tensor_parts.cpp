#include "snug/train/tensor_parts.h"

#include <utility>

#include "snug/optim/optimizer.h"
#include "snug/parallel/bucket_layout.h"
#include "snug/train/experiment.h"

namespace snug::train {
std::vector<state::TensorPart> parts_of(const Experiment& experiment, const state::NamedTensors& tensors) {
  std::vector<state::TensorPart> parts;
  for (const auto& [name, tensor] : tensors) {
    state::TensorPart part{name, tensor, tensor.sizes().vec(), 0};
    if (const models::ParameterPart* const mine = models::part_of(experiment.parameter_parts(), tensor)) {
      part.shape = mine->shape;
      part.runs = mine->runs;
    }
    for (const parallel::DividedParameter& divided : experiment.divided()) {
      if (!divided.parameter.is_same(tensor)) continue;
      part.part = divided.shard;
      const auto group = experiment.team().sharers();
      part.first = parallel::EvenShards(tensor.numel(), group->size()).first(group->rank());
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

std::vector<state::TensorPart> parts_of_optimizer(Experiment& experiment) {
  std::vector<state::TensorPart> parts;
  for (optim::PartOfState& kept : experiment.optimizer().parts_of_state(experiment.trained_names())) {
    state::TensorPart part{std::move(kept.name), kept.tensor, std::move(kept.shape), kept.first};
    if (const auto* const mine = models::part_of(experiment.parameter_parts(), kept.parameter);
        mine != nullptr && kept.follows != optim::StateShape::One) {
      const bool flat = kept.follows == optim::StateShape::Elements;
      part.shape = flat ? std::vector<std::int64_t>{c10::multiply_integers(mine->shape)} : mine->shape;
      part.runs = mine->runs;
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace snug::train
