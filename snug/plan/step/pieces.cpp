#include "snug/plan/step/pieces.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>

namespace snug::plan {
namespace {

constexpr OpId kFar = 64;  // operators

std::vector<OpId> last_reads(const Dataflow& flow) {
  std::vector<OpId> last_read(at(flow.values()), kNoOp);
  for (OpId op = 0; op < flow.ops(); ++op) {
    for (ValueId v : flow.inputs(op)) last_read[at(v)] = op;
  }
  return last_read;
}

/// By position p: values that operators before p made and operators from p on read, the last at most `reach` operators
/// after the one that made it.
std::vector<std::int32_t> crossing_values(const Dataflow& flow, OpId reach) {
  const std::vector<OpId> last_read = last_reads(flow);
  std::vector<std::int32_t> crossing(at(flow.ops()) + 2, 0);
  for (ValueId v = 0; v < flow.values(); ++v) {
    const OpId producer = flow.producer(v);
    if (flow.is_leaf(v) || last_read[at(v)] <= producer || last_read[at(v)] - producer > reach) continue;
    ++crossing[at(producer) + 1];
    --crossing[at(last_read[at(v)]) + 1];
  }
  for (std::size_t p = 1; p < crossing.size(); ++p) crossing[p] += crossing[p - 1];
  return crossing;
}

/// What is read further on than this is carried past the pieces of the step: masks, rotary tables, skips.
OpId far(const Dataflow& flow) { return std::max<OpId>(kFar, flow.ops() / 8); }

std::vector<OpId> cuts_where(const Dataflow& flow, const std::vector<std::int32_t>& crossing, std::int32_t most) {
  std::vector<OpId> cuts{0};
  for (OpId p = 1; p < flow.ops(); ++p) {
    if (crossing[at(p)] > 0 && crossing[at(p)] <= most) cuts.push_back(p);
  }
  if (flow.ops() > 0) cuts.push_back(flow.ops());
  return cuts;
}

/// Some of the cuts, so that the pieces between them save about equally much, and pieces that look alike stay so.
std::vector<OpId> evenly(const StepGraph& graph, const std::vector<OpId>& cuts, std::size_t limit) {
  std::vector<Bytes> saved_before(at(graph.flow.ops()) + 1, 0);
  for (OpId op = 0; op < graph.flow.ops(); ++op) {
    Bytes bytes = 1;  // no piece weighs nothing
    for (const Output& out : graph.flow.outputs(op)) {
      if (graph.values[at(out.value)].saved) bytes += graph.step_bytes(out.value);
    }
    saved_before[at(op) + 1] = saved_before[at(op)] + bytes;
  }
  // Between blocks, every so many of them, when there are enough; inside of each alike where there is room for it.
  std::vector<OpId> candidates = cuts;
  const std::vector<SegmentRange> blocks = repeated_blocks(graph);
  if (blocks.size() >= limit / 4) {
    const std::size_t group = (blocks.size() + limit - 3) / (limit - 2);
    const std::size_t parts = std::max<std::size_t>((limit - 2) / blocks.size(), 1);
    // A block may begin with a write to what the one before has made: no cut is there.
    const auto cut_from = [&](OpId position) { return *std::ranges::lower_bound(cuts, position); };
    candidates = {0};
    for (std::size_t i = 0; i < blocks.size(); i += group) {
      const OpId begin = cut_from(blocks[i].begin), end = cut_from(blocks[i].end);
      if (begin == end) continue;
      if (begin > 0) candidates.push_back(begin);
      const auto inner = std::ranges::upper_bound(cuts, begin);
      const auto count = static_cast<std::size_t>(std::ranges::lower_bound(cuts, end) - inner);
      for (std::size_t part = 1; part < std::min(parts, count + 1); ++part) {
        candidates.push_back(inner[static_cast<std::ptrdiff_t>(part * (count + 1) / std::min(parts, count + 1) - 1)]);
      }
    }
    if (const OpId end = cut_from(blocks.back().end); end < graph.flow.ops()) candidates.push_back(end);
    candidates.push_back(graph.flow.ops());
    if (candidates.size() - 1 <= limit) return candidates;
  }
  std::vector<OpId> chosen{0};
  const Bytes all = saved_before.back();
  for (std::size_t i = 1; i + 1 < candidates.size(); ++i) {
    const Bytes due = all * static_cast<Bytes>(chosen.size()) / static_cast<Bytes>(limit);
    if (saved_before[at(candidates[i])] >= due && chosen.size() < limit) chosen.push_back(candidates[i]);
  }
  chosen.push_back(graph.flow.ops());
  return chosen;
}
}  // namespace

std::vector<OpId> cut_points(const StepGraph& graph, int crossing) {
  return cuts_where(graph.flow, crossing_values(graph.flow, graph.flow.ops()), crossing);
}

std::vector<OpId> chain_cuts(const StepGraph& graph, std::size_t limit) {
  const Dataflow& flow = graph.flow;
  const OpId ops = flow.ops();
  std::vector<char> inside_write(at(ops) + 1, 0);  // the position separates a write from what it writes to
  for (OpId op = 0; op < ops; ++op) {
    for (const Output& out : flow.outputs(op)) {
      if (out.overwrites == kNoValue || flow.is_leaf(out.overwrites)) continue;
      for (OpId p = flow.producer(out.overwrites) + 1; p <= op; ++p) inside_write[at(p)] = 1;
    }
  }
  const std::vector<std::int32_t> crossing = crossing_values(flow, far(flow));
  std::vector<OpId> cuts;
  // As many values as it takes to find a few cuts.
  for (std::int32_t most = 1; most <= 4 && cuts.size() < 3; ++most) {
    cuts.clear();
    for (OpId p = 1; p < ops; ++p) {
      if (crossing[at(p)] <= most && !inside_write[at(p)]) cuts.push_back(p);
    }
  }
  cuts.insert(cuts.begin(), 0);
  cuts.push_back(ops);
  if (cuts.size() - 1 <= limit) return cuts;
  return evenly(graph, cuts, limit);
}

std::vector<SegmentRange> repeated_blocks(const StepGraph& graph) {
  const std::vector<OpId> cuts = cuts_where(graph.flow, crossing_values(graph.flow, far(graph.flow)), 1);
  const std::size_t pieces = cuts.size() - 1;
  // What a piece does, regardless of which values it does it to.
  std::vector<std::size_t> kind(pieces);
  std::unordered_map<std::string, std::size_t> kinds;
  for (std::size_t i = 0; i < pieces; ++i) {
    std::string names;
    for (OpId op = cuts[i]; op < cuts[i + 1]; ++op) names += graph.ops[at(op)].name + ";";
    kind[i] = kinds.try_emplace(std::move(names), kinds.size()).first->second;
  }
  std::size_t best_begin = 0, best_period = 0, best_length = 0;
  for (std::size_t period = 1; period <= pieces / 2; ++period) {
    std::size_t run = 0;  // pieces that equal the one a period before
    for (std::size_t i = period; i <= pieces; ++i) {
      if (i < pieces && kind[i] == kind[i - period]) {
        ++run;
        continue;
      }
      const std::size_t length = run >= period ? (run + period) / period * period : 0;
      if (length > best_length) {
        best_begin = i - run - period;
        best_period = period;
        best_length = length;
      }
      run = 0;
    }
  }
  std::vector<SegmentRange> blocks;
  for (std::size_t i = best_begin; i < best_begin + best_length; i += best_period) {
    blocks.push_back({cuts[i], cuts[i + best_period]});
  }
  return blocks;
}

}  // namespace snug::plan
