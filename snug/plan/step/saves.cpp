#include "snug/plan/step/saves.h"

#include <algorithm>
#include <map>
#include <utility>

namespace snug::plan {

std::vector<SavedBetween> saves_between_operators(std::span<const Event> events) {
  std::vector<SavedBetween> saves;
  std::map<ValueId, std::ptrdiff_t> here;
  OpId last = kNoOp;
  const auto end_with = [&](OpId next) {
    for (const auto& [value, times] : std::exchange(here, {})) saves.push_back({value, times, last, next});
    last = next;
  };
  for (const Event& event : events) {
    if (event.kind == Event::Kind::Save) ++here[event.id];
    if (event.kind == Event::Kind::Run) end_with(event.id);
  }
  end_with(kNoOp);
  return saves;
}

std::ptrdiff_t times_read(const Dataflow& flow, OpId op, ValueId value) {
  return op == kNoOp ? 0 : std::ranges::count(flow.inputs(op), value);
}

bool makes(const Dataflow& flow, OpId op, ValueId value) {
  return op != kNoOp && std::ranges::find(flow.outputs(op), value, &Output::value) != flow.outputs(op).end();
}

}  // namespace snug::plan
