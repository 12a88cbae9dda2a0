#include "snug/plan/run/offload_presets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/run/staging.h"
#include "snug/plan/step/legal_actions.h"
#include "snug/plan/step/module_calls.h"
#include "snug/plan/step/pieces.h"
#include "snug/plan/step/saves.h"

namespace snug::plan {
namespace {

void check_room(Bytes taken, const std::optional<MoveCost>& there, const char* name, const std::string& strategy) {
  if (!there || !there->budget || taken <= *there->budget) return;
  throw UsageError(fmt::format("plan: {} moves {} at once, and the {} budget is {}; give more, or another strategy",
                               strategy, format_bytes(taken), name, format_bytes(*there->budget)));
}

/// Moves those values that may be, with memory for so many of them on their way out, and one on its way back.
MemoryPlan moving(const StepGraph& graph, MemoryPlan plan, const std::vector<ValueId>& values, int on_their_way,
                  const std::string& strategy) {
  if (!graph.moves.any()) {
    throw UsageError(fmt::format(
        "plan: {} moves what autograd saves, and there is no place for it; give a host budget or a disk budget",
        strategy));
  }
  Bytes largest = 0;
  for (const ValueId v : values) {
    if (!may_move(graph, v)) continue;
    plan.actions[at(v)] = graph.moves.host ? kMove : kMoveToDisk;
    largest = std::max(largest, graph.step_bytes(v));
  }
  plan = staged(graph, std::move(plan), on_their_way * largest, largest, FetchFrom::TheBeginning);
  plan.staging = staging_of(graph, plan);
  const Simulation run = simulate(graph, plan);
  check_room(run.host_peak, graph.moves.host, "host", strategy);
  check_room(run.disk_peak, graph.moves.disk, "disk", strategy);
  plan.strategy = strategy;
  plan.predicted_peak = run.peak;
  plan.predicted_seconds = run.seconds;
  return plan;
}

/// By operator, which of the ranges it is in, the first of several; -1: none.
std::vector<std::ptrdiff_t> range_by_op(const StepGraph& graph, const std::vector<SegmentRange>& ranges) {
  std::vector<std::ptrdiff_t> found(graph.ops.size(), -1);
  for (std::size_t i = ranges.size(); i-- > 0;) {
    for (OpId op = ranges[i].begin; op < ranges[i].end; ++op) found[at(op)] = static_cast<std::ptrdiff_t>(i);
  }
  return found;
}

}  // namespace

MemoryPlan plan_offload(const StepGraph& graph, Bytes min_bytes) {
  const std::vector<SegmentRange> blocks = repeated_blocks(graph);
  const OpId head = blocks.empty() ? graph.flow.ops() : blocks.back().end;
  std::vector<ValueId> values;
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    if (graph.flow.is_leaf(v) || graph.flow.producer(v) >= head || graph.step_bytes(v) < min_bytes) continue;
    values.push_back(v);
  }
  constexpr int kOnTheirWay = 5;
  return moving(graph, plan_none(graph), values, kOnTheirWay, fmt::format("offload({})", min_bytes));
}

MemoryPlan plan_offloaded_blocks(const StepGraph& graph, int kept) {
  const std::vector<SegmentRange> blocks = repeated_blocks(graph);
  const auto count = static_cast<int>(blocks.size());
  if (blocks.empty()) throw UsageError("plan: offloaded_blocks: the step has no repeated blocks");
  if (kept < 0 || kept > count) {
    throw UsageError(fmt::format(
        "plan: offloaded_blocks: {} blocks keep what they begin with; it must be from 0 to {}, the number of blocks",
        kept, count));
  }
  // What one block alone reads that another one made, or what is in front of them: masks, say, are of all.
  constexpr std::ptrdiff_t kNobody = -1, kSeveral = -2;
  std::vector<std::ptrdiff_t> reader(graph.values.size(), kNobody);
  const std::vector<std::ptrdiff_t> block_of = range_by_op(graph, blocks);
  for (OpId op = 0; op < graph.flow.ops(); ++op) {
    for (const ValueId v : graph.flow.inputs(op)) {
      const std::ptrdiff_t block = block_of[at(op)];
      if (graph.flow.is_leaf(v) || block == block_of[at(graph.flow.producer(v))]) continue;
      reader[at(v)] = reader[at(v)] == kNobody || reader[at(v)] == block ? block : kSeveral;
    }
  }
  std::vector<ValueId> values;
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    if (reader[at(v)] >= 0 && reader[at(v)] < count - kept) values.push_back(v);
  }
  constexpr int kOnTheirWay = 2;
  return moving(graph, plan_every_block(graph), values, kOnTheirWay, fmt::format("offloaded_blocks({})", kept));
}

MemoryPlan plan_offloaded_modules(const StepGraph& graph, std::span<const std::string> names) {
  const std::vector<SegmentRange> calls = calls_of_modules(graph, names);
  const std::vector<std::ptrdiff_t> call_of = range_by_op(graph, calls);
  const auto inside = [&](OpId op) { return op != kNoOp && call_of[at(op)] >= 0; };
  std::vector<ValueId> values;
  for (const auto& [value, times, last, next] : saves_between_operators(graph.events)) {
    const bool next_reads = times_read(graph.flow, next, value) > 0;
    // What a module makes may be saved by who reads it behind the module.
    const bool last_saves = times_read(graph.flow, last, value) > 0 || (makes(graph.flow, last, value) && !next_reads);
    if ((next_reads && inside(next)) || (last_saves && inside(last))) values.push_back(value);
  }
  constexpr int kOnTheirWay = 2;
  return moving(graph, plan_none(graph), values, kOnTheirWay,
                fmt::format("offload_modules({})", fmt::join(names, ",")));
}

}  // namespace snug::plan
