#include "snug/replay/undone_draws.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "snug/record/random_state.h"

namespace snug::replay {

UndoneDraws::UndoneDraws()
    : gate_({.before = [this](const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
        for (std::size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
          if (!stack[i].isGenerator()) continue;
          at::Generator generator = stack[i].toGenerator();
          if (std::ranges::find(known_, generator, &Known::generator) != known_.end()) continue;
          const at::Tensor state = record::save_random_state(generator).state;
          const auto* const bytes = state.const_data_ptr<std::uint8_t>();
          known_.push_back({std::move(generator), {bytes, bytes + state.numel()}});
        }
      }}) {}

UndoneDraws::~UndoneDraws() {
  for (const Known& known : known_) {
    const at::Tensor state = at::empty({static_cast<std::int64_t>(known.state.size())}, at::kByte);
    std::ranges::copy(known.state, state.mutable_data_ptr<std::uint8_t>());
    record::restore({known.generator, state});
  }
}

}  // namespace snug::replay
