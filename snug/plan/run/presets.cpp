#include "snug/plan/run/presets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "snug/base/errors.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/step/legal_actions.h"
#include "snug/plan/step/operator_name.h"
#include "snug/plan/step/pieces.h"

namespace snug::plan {
namespace {

constexpr int kArgumentsTried = 24;
constexpr int kFewCheckpoints = 12;
constexpr int kMostForwards = 12;

MemoryPlan keep_saved(const StepGraph& graph) {
  MemoryPlan plan = bare_plan(graph);
  plan.strategy = "none";
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].saved) plan.actions[v] = kKeep;
  }
  return plan;
}

/// plan_segments without the prediction. Segments may nest; what crosses inner ones is not kept in the first pass.
/// Outside of all of them nothing is replayed, so what is read there is kept only where it is saved.
MemoryPlan drop_inside(const StepGraph& graph, std::span<const SegmentRange> segments) {
  MemoryPlan plan = keep_saved(graph);
  plan.segments.assign(segments.begin(), segments.end());
  std::ranges::sort(plan.segments, [](const SegmentRange& a, const SegmentRange& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  std::vector<OpId> outermost(graph.ops.size(), kNoOp);  // where the outermost range around an operator begins
  OpId end = 0;
  for (const SegmentRange& range : plan.segments) {
    if (range.begin < end) continue;
    end = range.end;
    for (OpId op = range.begin; op < range.end; ++op) outermost[at(op)] = range.begin;
  }
  const Dataflow& flow = graph.flow;
  for (ValueId v = 0; v < flow.values(); ++v) {
    if (!flow.is_leaf(v) && outermost[at(flow.producer(v))] != kNoOp) plan.actions[at(v)] = kRecompute;
  }
  for (OpId op = 0; op < flow.ops(); ++op) {
    for (ValueId v : flow.inputs(op)) {
      if (flow.is_leaf(v) || outermost[at(flow.producer(v))] == outermost[at(op)]) continue;
      if (outermost[at(op)] != kNoOp || graph.values[at(v)].saved) plan.actions[at(v)] = kKeep;
    }
  }
  return plan;
}

MemoryPlan finished(const StepGraph& graph, MemoryPlan plan, std::string strategy) {
  plan.strategy = std::move(strategy);
  return predicted(graph, std::move(plan));
}

int count(const std::vector<SegmentRange>& blocks) { return static_cast<int>(blocks.size()); }

/// The repeated blocks of a step.
using Blocks = std::vector<SegmentRange>;

/// Throws when there are none, or `argument` is not in 1 .. their number.
void check_blocks(const Blocks& blocks, const char* strategy, const char* name, int argument) {
  if (blocks.empty()) throw UsageError(fmt::format("plan: {}: the step has no repeated blocks", strategy));
  if (argument < 1 || argument > count(blocks)) {
    throw UsageError(fmt::format("plan: {}: {} is {}; it must be from 1 to {}, the number of blocks", strategy, name,
                                 argument, blocks.size()));
  }
}

/// Blocks in groups of `size`, the last may be shorter.
std::vector<SegmentRange> grouped(const std::vector<SegmentRange>& blocks, int size) {
  std::vector<SegmentRange> groups;
  for (int i = 0; i < count(blocks); i += size) {
    groups.push_back({blocks[at(i)].begin, blocks[at(std::min(i + size, count(blocks)) - 1)].end});
  }
  return groups;
}

/// Steps of forward that reversing a chain of `steps` takes with so many checkpoints: r l - C(s + r, r - 1) with the
/// smallest r such that C(s + r, s) >= l.
std::int64_t revolve_steps(std::int64_t steps, std::int64_t checkpoints) {
  if (steps <= 1) return 0;
  if (checkpoints == 0) return std::numeric_limits<std::int32_t>::max();
  std::int64_t r = 0;
  std::int64_t reach = 1;  // C(s + r, s)
  std::int64_t below = 0;  // C(s + r, r - 1)
  while (reach < steps) {
    ++r;
    reach = reach * (checkpoints + r) / r;
    below = reach * r / (checkpoints + 1);
  }
  return r * steps - below;
}

bool is_attention(const std::string& name) {
  return name.find("scaled_dot_product") != std::string::npos || name == "snug::attention";
}
bool is_softmax(const std::string& name) { return name == "aten::_softmax" || name == "aten::_safe_softmax"; }
bool is_product(const std::string& name) { return name == "aten::bmm" || name == "aten::baddbmm"; }

}  // namespace

MemoryPlan bare_plan(const StepGraph& graph) {
  MemoryPlan plan;
  plan.fingerprint = graph.fingerprint();
  plan.actions.assign(graph.values.size(), kRecompute);
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    if (graph.flow.is_leaf(v)) plan.actions[at(v)] = kKeep;
  }
  return plan;
}

MemoryPlan plan_none(const StepGraph& graph) { return predicted(graph, keep_saved(graph)); }

MemoryPlan plan_lossy_alone(const StepGraph& graph, const MemoryPlan& plan) {
  MemoryPlan alone = keep_saved(graph);
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    if (is_lossy(decided(graph, plan, v))) alone.actions[at(v)] = plan.action(v);
  }
  return predicted(graph, std::move(alone));
}

MemoryPlan plan_segments(const StepGraph& graph, std::span<const SegmentRange> segments) {
  return finished(graph, drop_inside(graph, segments), "segments");
}

namespace {

MemoryPlan every_block(const StepGraph& graph, const Blocks& blocks) {
  return finished(graph, drop_inside(graph, blocks), "every_block");
}

MemoryPlan chen_sqrt(const StepGraph& graph, const Blocks& blocks) {
  const int size = std::max(1, static_cast<int>(std::lround(std::sqrt(static_cast<double>(blocks.size())))));
  return finished(graph, drop_inside(graph, grouped(blocks, size)), "chen_sqrt");
}

MemoryPlan sequential(const StepGraph& graph, const Blocks& blocks, int segments) {
  check_blocks(blocks, "sequential", "segments", segments);
  const int size = count(blocks) / segments;
  std::vector<SegmentRange> ranges;
  for (int i = 0; i + 1 < segments; ++i) {
    ranges.push_back({blocks[at(i * size)].begin, blocks[at((i + 1) * size - 1)].end});
  }
  return finished(graph, drop_inside(graph, ranges), fmt::format("sequential({})", segments));
}

MemoryPlan revolve(const StepGraph& graph, const Blocks& blocks, int checkpoints) {
  check_blocks(blocks, "revolve", "checkpoints", checkpoints);
  std::vector<SegmentRange> ranges;
  for (const SegmentRange& range : revolve_segments(count(blocks), checkpoints)) {
    ranges.push_back({blocks[at(range.begin)].begin, blocks[at(range.end - 1)].end});
  }
  return finished(graph, drop_inside(graph, ranges), fmt::format("revolve({})", checkpoints));
}

MemoryPlan full_uniform(const StepGraph& graph, const Blocks& blocks, int layers) {
  check_blocks(blocks, "full_uniform", "layers", layers);
  return finished(graph, drop_inside(graph, grouped(blocks, layers)), fmt::format("full_uniform({})", layers));
}

MemoryPlan full_block(const StepGraph& graph, const Blocks& blocks, int layers) {
  check_blocks(blocks, "full_block", "layers", layers);
  return finished(graph, drop_inside(graph, std::span(blocks).first(at(layers))),
                  fmt::format("full_block({})", layers));
}

}  // namespace

MemoryPlan plan_every_block(const StepGraph& graph) { return every_block(graph, repeated_blocks(graph)); }
MemoryPlan plan_chen_sqrt(const StepGraph& graph) { return chen_sqrt(graph, repeated_blocks(graph)); }
MemoryPlan plan_sequential(const StepGraph& graph, int segments) {
  return sequential(graph, repeated_blocks(graph), segments);
}
MemoryPlan plan_revolve(const StepGraph& graph, int checkpoints) {
  return revolve(graph, repeated_blocks(graph), checkpoints);
}
MemoryPlan plan_full_uniform(const StepGraph& graph, int layers) {
  return full_uniform(graph, repeated_blocks(graph), layers);
}
MemoryPlan plan_full_block(const StepGraph& graph, int layers) {
  return full_block(graph, repeated_blocks(graph), layers);
}

MemoryPlan plan_selective_blocks(const StepGraph& graph, std::span<const std::string> operators) {
  const Blocks blocks = repeated_blocks(graph);
  check_blocks(blocks, "selective", "blocks", 1);
  if (operators.empty())
    throw UsageError("plan: selective: name the operators whose results are kept, as in selective(aten::mm)");
  MemoryPlan plan = drop_inside(graph, blocks);
  std::set<std::string> unseen(operators.begin(), operators.end());
  for (OpId op = 0; op < graph.flow.ops(); ++op) {
    const std::string& name = graph.ops[at(op)].name;
    bool kept = false;
    for (const std::string& written : operators) {
      if (!names_operator(written, name)) continue;
      kept = true;
      unseen.erase(written);
    }
    if (!kept) continue;
    for (const Output& out : graph.flow.outputs(op)) plan.actions[at(out.value)] = kKeep;
  }
  if (!unseen.empty()) {
    std::set<std::string> names;
    for (const OpInfo& op : graph.ops) names.insert(op.name);
    throw UsageError(fmt::format("plan: selective: the step has no operator \"{}\"; those it has are {}",
                                 *unseen.begin(), fmt::join(names, ", ")));
  }
  return finished(graph, std::move(plan), fmt::format("selective({})", fmt::join(operators, ",")));
}

std::vector<SegmentRange> revolve_segments(int steps, int checkpoints) {
  std::vector<SegmentRange> ranges;
  const auto reverse = [&](const auto& self, int begin, int length, int free) -> void {
    // The rest of the range is on this level; what is before `split` is replayed on its own later.
    while (length > 1) {
      int split = length - 1;
      for (int m = 1; m < length && free > 1; ++m) {
        const auto cost = [&](int at_split) {
          return at_split + revolve_steps(length - at_split, free - 1) + revolve_steps(at_split, free);
        };
        if (cost(m) < cost(split)) split = m;
      }
      ranges.push_back({begin, begin + split});
      self(self, begin, split, free);
      begin += split;
      length -= split;
      --free;
    }
  };
  reverse(reverse, 0, steps, std::max(checkpoints, 1));
  return ranges;
}

std::vector<MemoryPlan> all_presets(const StepGraph& graph) {
  std::vector<MemoryPlan> plans{plan_none(graph)};
  const Blocks all = repeated_blocks(graph);
  const int blocks = count(all);
  if (blocks > 0) {
    plans.push_back(every_block(graph, all));
    plans.push_back(chen_sqrt(graph, all));
    // All arguments of short models, evenly spread ones of deep models.
    const int stride = (blocks + kArgumentsTried - 1) / kArgumentsTried;
    for (int n = 1; n <= blocks; ++n) {
      const bool spread = (n - 1) % stride == 0;
      for (const auto& preset : {sequential, full_uniform, full_block}) {
        if (spread) plans.push_back(preset(graph, all, n));
      }
      // One checkpoint more saves much time where there are few of them; but too few for many blocks take more than
      // anybody has.
      if (!spread && n > kFewCheckpoints) continue;
      if (revolve_steps(blocks, n) <= kMostForwards * blocks) plans.push_back(revolve(graph, all, n));
    }
  }
  const auto has_attention = [](const OpInfo& op) { return is_attention(op.name) || is_softmax(op.name); };
  if (std::ranges::any_of(graph.ops, has_attention)) {
    try {
      plans.push_back(plan_core_attention(graph));
    } catch (const UsageError&) {
      // A softmax that is no attention.
    }
  }
  return plans;
}

MemoryPlan plan_core_attention(const StepGraph& graph) {
  std::vector<SegmentRange> cores;
  std::vector<OpId> products;  // in their order
  for (OpId op = 0; op < graph.flow.ops(); ++op) {
    if (is_product(graph.ops[at(op)].name)) products.push_back(op);
  }
  for (OpId op = 0; op < graph.flow.ops(); ++op) {
    const std::string& name = graph.ops[at(op)].name;
    if (is_attention(name)) {
      cores.push_back({op, op + 1});
    } else if (is_softmax(name)) {
      // Unfused: from the product that makes the scores to the one that uses them.
      const auto behind = std::ranges::lower_bound(products, op);
      if (behind == products.begin() || behind == products.end()) continue;
      const OpId first = *std::prev(behind), last = *behind;
      if (cores.empty() || cores.back().end <= first) cores.push_back({first, last + 1});
    }
  }
  if (cores.empty()) throw UsageError("plan: core_attention: the step has no attention");
  return finished(graph, drop_inside(graph, cores), "core_attention");
}

}  // namespace snug::plan
