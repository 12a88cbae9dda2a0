#pragma once

#include <cstddef>

#include "snug/plan/run/simulator.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// What other micro-batches hold that are in flight (StepGraph::in_flight), beside what one of them takes as a
/// simulation walks its events.
class OthersInFlight {
 public:
  /// `graph` must outlive this.
  explicit OthersInFlight(const StepGraph& graph);

  /// The event at `position` is about to happen, `live` bytes are there.
  void before_event(std::size_t position, Bytes live, Simulation& result);
  /// Behind the last one: adds what they hold to the figures of all events until the backward pass is over.
  void at_end(Bytes live, Simulation& result);

 private:
  struct Peak {
    Bytes peak = 0;
    std::size_t event = 0;
    OpId op = kNoOp;
  };

  const StepGraph& graph_;
  std::size_t turn_, over_;
  Bytes held_ = 0;  // by each
  Peak of_pass_;    // without what they hold
};

/// What one micro-batch holds between its forward and its backward pass.
Bytes held_in_between(const StepGraph& graph, const MemoryPlan& plan);

}  // namespace snug::plan
