#include "snug/replay/undone_draws.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "snug/record/random_state.h"

namespace snug::replay {

UndoneDraws::UndoneDraws()
    : gate_({.before =
                 [this](const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
                   for (std::size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
                     if (stack[i].isGenerator()) note(stack[i].toGenerator());
                   }
                 },
             .before_draw = [this](const at::Generator& generator) { note(generator); }}) {
  for (at::Generator& generator : record::default_generators()) note(std::move(generator));
}

void UndoneDraws::note(at::Generator generator) {
  const std::lock_guard lock(mutex_);
  if (std::ranges::find(known_, generator, &Known::generator) != known_.end()) return;
  const at::Tensor state = record::save_random_state(generator).state;
  const auto* const bytes = state.const_data_ptr<std::uint8_t>();
  known_.push_back({std::move(generator), {bytes, bytes + state.numel()}});
}

UndoneDraws::~UndoneDraws() {
  for (Known& known : known_) {
    const auto size = static_cast<std::int64_t>(known.state.size());
    record::restore({known.generator, at::from_blob(known.state.data(), {size}, at::kByte)});
  }
}

}  // namespace snug::replay
