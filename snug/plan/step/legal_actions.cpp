#include "snug/plan/step/legal_actions.h"

#include <algorithm>
#include <array>

namespace snug::plan {
namespace {

constexpr std::array kFree = {kKeep, kRecompute, kMove};
constexpr std::size_t kWithoutMoving = 2;
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
  const bool can_leave = graph.host && graph.values[at(value)].saved && graph.step_bytes(value) > 0;
  return can_leave ? std::span(kFree) : std::span(kFree).first(kWithoutMoving);
}

bool may_move(const StepGraph& graph, ValueId value) {
  return std::ranges::find(legal_actions(graph, value), kMove) != legal_actions(graph, value).end();
}

std::vector<Action> other_actions(const StepGraph& graph, const MemoryPlan& plan, ValueId value) {
  std::vector<Action> others;
  for (const Action& action : legal_actions(graph, value)) {
    if (action != plan.action(value)) others.push_back(action);
  }
  return others;
}

}  // namespace snug::plan
