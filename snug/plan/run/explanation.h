#pragma once

#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// What a plan does with the values that autograd saved, and what it costs.
struct Share {
  std::string name;
  std::string module;       ///< of a piece: the path that all of its operators have in common; may be empty
  OpId begin = 0, end = 0;  ///< operators, of a piece
  Bytes kept = 0;           ///< bytes of saved values that are there when backward begins
  Bytes moved = 0;          ///< of those that are elsewhere then, and are fetched
  Bytes compressed = 0;     ///< of those that are there in fewer bytes then,
  Bytes encoded = 0;        ///< these
  Bytes lossy = 0;          ///< of those of which backward gets what a lossy codec leaves of them,
  Bytes lossy_encoded = 0;  ///< in these
  Bytes recomputed = 0;     ///< of those that are made again
  double seconds = 0;       ///< of replayed operators
  std::int64_t replayed_ops = 0;
};

struct Explanation {
  std::vector<Share> pieces;     ///< the repeated blocks and what lies around them, in the order of the step
  std::vector<Share> operators;  ///< by name, of those that are replayed or whose results are dropped; dearest first
  Share all;
  Bytes host_peak = 0, disk_peak = 0;  ///< the most that is on the host, and on the disk, at once
  double waiting = 0;                  ///< seconds, for copies there and back
  double peak_seconds = 0;             ///< when the step's peak comes, after its beginning, replays included
};

/// Pure; the plan must be for the graph.
Explanation explain(const StepGraph& graph, const MemoryPlan& plan);

}  // namespace snug::plan
