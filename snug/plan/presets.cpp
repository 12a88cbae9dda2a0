#include "snug/plan/presets.h"

#include <algorithm>
#include <cmath>

#include "snug/plan/pieces.h"
#include "snug/plan/simulator.h"

namespace snug::plan {
namespace {

std::size_t at(std::int32_t id) { return static_cast<std::size_t>(id); }

MemoryPlan keep_saved(const StepGraph& graph) {
  MemoryPlan plan;
  plan.strategy = "none";
  plan.fingerprint = graph.fingerprint();
  plan.actions.assign(graph.values.size(), Recompute{});
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].saved || graph.flow.is_leaf(static_cast<ValueId>(v))) plan.actions[v] = Keep{};
  }
  return plan;
}

}  // namespace

MemoryPlan plan_none(const StepGraph& graph) { return predicted(graph, keep_saved(graph)); }

MemoryPlan plan_segments(const StepGraph& graph, std::span<const SegmentRange> segments) {
  MemoryPlan plan = keep_saved(graph);
  plan.segments.assign(segments.begin(), segments.end());
  std::ranges::sort(plan.segments, {}, &SegmentRange::begin);
  std::vector<std::int32_t> range_of(graph.ops.size(), -1);
  for (std::size_t i = 0; i < plan.segments.size(); ++i) {
    for (OpId op = plan.segments[i].begin; op < plan.segments[i].end; ++op)
      range_of[at(op)] = static_cast<std::int32_t>(i);
  }
  const Dataflow& flow = graph.flow;
  for (ValueId v = 0; v < flow.values(); ++v) {
    if (!flow.is_leaf(v) && range_of[at(flow.producer(v))] >= 0) plan.actions[at(v)] = Recompute{};
  }
  for (OpId op = 0; op < flow.ops(); ++op) {
    for (ValueId v : flow.inputs(op)) {
      if (flow.is_leaf(v)) continue;
      const std::int32_t born = range_of[at(flow.producer(v))];
      const std::int32_t here = range_of[at(op)];
      if (born != here) plan.actions[at(v)] = Keep{};
    }
  }
  return predicted(graph, std::move(plan));
}

MemoryPlan plan_every_block(const StepGraph& graph) {
  MemoryPlan plan = plan_segments(graph, repeated_blocks(graph));
  plan.strategy = "every_block";
  return plan;
}

MemoryPlan plan_sqrt(const StepGraph& graph) {
  const std::vector<SegmentRange> blocks = repeated_blocks(graph);
  std::vector<SegmentRange> groups;
  const auto size = static_cast<std::size_t>(std::max(1.0, std::round(std::sqrt(static_cast<double>(blocks.size())))));
  for (std::size_t i = 0; i < blocks.size(); i += size) {
    groups.push_back({blocks[i].begin, blocks[std::min(i + size, blocks.size()) - 1].end});
  }
  MemoryPlan plan = plan_segments(graph, groups);
  plan.strategy = "sqrt";
  return plan;
}

}  // namespace snug::plan
