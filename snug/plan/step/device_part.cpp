#include "snug/plan/step/device_part.h"

#include <utility>

#include "snug/plan/step/step_graph.h"

namespace snug::plan {

StepGraph seen_from(const StepGraph& graph, const DevicePart& part) {
  StepGraph seen = graph;
  seen.parts.clear();
  seen.moves = {};  // whose costs and budgets are of the first
  std::swap(seen.devices.front(), seen.devices[static_cast<std::size_t>(part.device)]);
  for (ValueInfo& value : seen.values) {
    value.encodings.clear();
    if (value.device == part.device) {
      value.device = 0;
    } else if (value.device == 0) {
      value.device = part.device;
    }
  }
  for (std::size_t op = 0; op < seen.ops.size(); ++op) {
    seen.ops[op].peak_bytes = part.ops[op].peak;
    seen.ops[op].other_bytes = part.ops[op].net;
  }
  for (std::size_t i = 0; i < seen.events.size(); ++i) {
    seen.events[i].peak = part.events[i].peak;
    seen.events[i].net = part.events[i].net;
  }
  seen.static_bytes = part.static_bytes;
  seen.static_by_tag = part.static_by_tag;
  seen.update_bytes = part.update_bytes;
  seen.others_held = 0;  // of the first
  return seen;
}

}  // namespace snug::plan
