#include "snug/plan/step/legal_actions.h"

#include <algorithm>
#include <array>

namespace snug::plan {
namespace {

// By codec: keep, recompute and move, compress, or the first two and compress.
constexpr std::array<std::array<Action, 4>, 5> kFree{{
    {kKeep, kRecompute, kMove, kMove},
    {kKeep, kRecompute, compressed(Codec::Zeros), kMove},
    {kKeep, kRecompute, compressed(Codec::Bits), kMove},
    {kKeep, kRecompute, compressed(Codec::Narrow), kMove},
    {kKeep, kRecompute, compressed(Codec::Exponents), kMove},
}};
constexpr std::array kOnlyKeep = {kKeep};
constexpr std::array kOnlyRecompute = {kRecompute};

}  // namespace

std::span<const Action> legal_actions(const StepGraph& graph, ValueId value) {
  if (graph.flow.is_leaf(value)) return kOnlyKeep;  // there is no operator to run again
  switch (graph.values[at(value)].must) {
    case Must::Keep:
      return kOnlyKeep;
    case Must::Recompute:
      return kOnlyRecompute;
    case Must::Nothing:
      break;
  }
  const ValueInfo& info = graph.values[at(value)];
  const bool takes_memory = info.saved && graph.step_bytes(value) > 0;
  const Codec codec = takes_memory && info.encoding ? info.encoding->codec : Codec::None;
  const std::size_t count = 2 + (codec != Codec::None ? 1 : 0) + (takes_memory && graph.host ? 1 : 0);
  return std::span(kFree[static_cast<std::size_t>(codec)]).first(count);
}

bool may_move(const StepGraph& graph, ValueId value) {
  const auto actions = legal_actions(graph, value);
  return std::ranges::find(actions, kMove) != actions.end();
}

Bytes bytes_held(const StepGraph& graph, ValueId value, Action action) {
  if (action == kKeep) return graph.step_bytes(value);
  const auto& encoding = graph.values[at(value)].encoding;
  return is_compressed(action) && encoding ? encoding->bytes : 0;
}

std::vector<Action> other_actions(const StepGraph& graph, const MemoryPlan& plan, ValueId value) {
  std::vector<Action> others;
  for (const Action& action : legal_actions(graph, value)) {
    if (action != plan.action(value)) others.push_back(action);
  }
  return others;
}

}  // namespace snug::plan
