#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// What a step would take under a plan.
struct Simulation {
  Bytes peak = 0;              ///< static bytes included, and what other micro-batches in flight hold
  std::size_t peak_event = 0;  ///< position in StepGraph::events
  OpId peak_op = kNoOp;        ///< the operator that ran or was replayed there, kNoOp between operators
  Bytes after_forward = 0;
  double seconds = 0;  ///< of forward and backward: as recorded, what is replayed, and waiting for what is moved
  std::int64_t replayed_ops = 0;
  double waiting_seconds = 0;         ///< of `seconds`: for copies out of the device's memory and back
  double coding_seconds = 0;          ///< of `seconds`: to compress, and back
  double copying_seconds = 0;         ///< of `seconds`: the processor's part of copies that go on beside the step
  Bytes host_peak = 0;                ///< of what has been moved there, in slabs where its memory comes in those,
  Bytes disk_peak = 0;                ///< or there
  std::vector<ValueId> asked;         ///< values in the order in which backward first reads them, or makes them again
  std::vector<Bytes> timeline;        ///< memory after each event; filled on request
  std::vector<Bytes> peaks;           ///< highest memory during each event; filled on request
  std::vector<double> times;          ///< when each event was over, after the step's beginning; filled on request
  std::vector<std::int32_t> replays;  ///< by OpId, how often it ran again
};

/// How much a simulation tells.
enum class Detail : std::uint8_t {
  Totals,
  Timeline  ///< also what is filled on request
};

/// Walks the events of `graph` as the executor would under `plan`, with the same Ledger. Pure; the plan must be for
/// the graph. Where the allocator is deterministic, the peak is that of the run. Micro-batches in flight
/// (StepGraph::in_flight) hold what this one does where its backward pass begins, all the time until it is over.
Simulation simulate(const StepGraph& graph, const MemoryPlan& plan, Detail detail = Detail::Totals);

/// The same, given up when more than `replays` operators run again, or more is moved than may be: for searches, which
/// have no use for such plans.
std::optional<Simulation> simulate_within(const StepGraph& graph, const MemoryPlan& plan, std::int64_t replays,
                                          Detail detail = Detail::Totals);

/// The plan with predicted_peak and predicted_seconds filled in.
MemoryPlan predicted(const StepGraph& graph, MemoryPlan plan);

}  // namespace snug::plan
