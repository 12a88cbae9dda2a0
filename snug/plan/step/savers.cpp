#include "snug/plan/step/savers.h"

#include <algorithm>

namespace snug::plan {

std::vector<Saver> possible_savers(const Dataflow& flow, std::span<const Event> events) {
  std::vector<Saver> savers;
  OpId last = kNoOp;
  const auto reads = [&](OpId op, ValueId value) {
    const auto inputs = flow.inputs(op);
    return std::ranges::find(inputs, value) != inputs.end();
  };
  const auto makes = [&](OpId op, ValueId value) {
    return std::ranges::any_of(flow.outputs(op), [&](const Output& out) { return out.value == value; });
  };
  for (const Event& event : events) {
    if (event.kind == Event::Kind::Run) last = event.id;
    if (event.kind != Event::Kind::Save) continue;
    const ValueId value = event.id;
    const std::size_t first = savers.size();
    const OpId next = last + 1;
    if (next < flow.ops() && reads(next, value)) savers.push_back({value, next, Saver::By::Reading});
    if (last != kNoOp && reads(last, value)) {
      savers.push_back({value, last, Saver::By::Reading});
    } else if (last != kNoOp && makes(last, value)) {
      savers.push_back({value, last, Saver::By::Making});
    }
    if (savers.size() == first + 1) savers.back().alone = true;
  }
  return savers;
}

}  // namespace snug::plan
