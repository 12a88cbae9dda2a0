#include "snug/plan/run/homes.h"

#include "snug/plan/run/away.h"
#include "snug/plan/step/legal_actions.h"

namespace snug::plan {

MemoryPlan within_host(const StepGraph& graph, MemoryPlan plan) {
  if (!graph.moves.disk || !graph.moves.host || !graph.moves.host->budget) return plan;
  Bytes left = *graph.moves.host->budget;
  for (ValueId v = graph.flow.values() - 1; v >= 0; --v) {
    if (plan.action(v) != kMove) continue;
    const Bytes room = room_for(graph.step_bytes(v), Home::Host);
    if (room <= left) {
      left -= room;
    } else if (may_move(graph, v)) {
      plan.actions[at(v)] = kMoveToDisk;
    }
  }
  return plan;
}

}  // namespace snug::plan
