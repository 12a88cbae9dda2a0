#include "snug/plan/run/in_flight.h"

#include <algorithm>

namespace snug::plan {

OthersInFlight::OthersInFlight(const StepGraph& graph)
    : graph_(graph), turn_(graph.turn_event()), over_(graph.backward_end()) {}

void OthersInFlight::before_event(std::size_t position, Bytes live, Simulation& result) {
  if (position == turn_) held_ = live - graph_.static_bytes;
  if (position != over_) return;
  of_pass_ = {result.peak, result.peak_event, result.peak_op};
  result.peak = live;
  result.peak_event = position;
  result.peak_op = kNoOp;
}

void OthersInFlight::at_end(Bytes live, Simulation& result) {
  before_event(graph_.events.size(), live, result);
  const Bytes others = (graph_.in_flight - 1) * held_ + graph_.others_held;
  if (of_pass_.peak + others >= result.peak) {
    result.peak = of_pass_.peak + others;
    result.peak_event = of_pass_.event;
    result.peak_op = of_pass_.op;
  }
  for (std::vector<Bytes>* const all : {&result.timeline, &result.peaks}) {
    for (std::size_t i = 0; i < std::min(over_, all->size()); ++i) (*all)[i] += others;
  }
  result.host_peak *= graph_.in_flight;
  result.disk_peak *= graph_.in_flight;
}

Bytes held_in_between(const StepGraph& graph, const MemoryPlan& plan) {
  StepGraph alone = graph;
  alone.in_flight = 1;
  alone.others_held = 0;
  const std::size_t turn = graph.turn_event();
  if (turn == 0) return 0;
  return simulate(alone, plan, Detail::Timeline).timeline[turn - 1] - graph.static_bytes;
}

}  // namespace snug::plan
