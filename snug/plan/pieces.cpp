#include "snug/plan/pieces.h"

#include <algorithm>
#include <cstdint>

namespace snug::plan {
namespace {
std::size_t at(std::int32_t id) { return static_cast<std::size_t>(id); }
}  // namespace

std::vector<OpId> cut_points(const StepGraph& graph, int crossing) {
  const Dataflow& flow = graph.flow;
  std::vector<OpId> last_read(at(flow.values()), kNoOp);
  for (OpId op = 0; op < flow.ops(); ++op) {
    for (ValueId v : flow.inputs(op)) last_read[at(v)] = op;
  }
  std::vector<std::int32_t> change(at(flow.ops()) + 2, 0);
  for (ValueId v = 0; v < flow.values(); ++v) {
    if (flow.is_leaf(v) || last_read[at(v)] <= flow.producer(v)) continue;
    ++change[at(flow.producer(v)) + 1];
    --change[at(last_read[at(v)]) + 1];
  }
  std::vector<OpId> cuts{0};
  std::int32_t live = 0;
  for (OpId p = 1; p < flow.ops(); ++p) {
    live += change[at(p)];
    if (live <= crossing && live > 0) cuts.push_back(p);
  }
  if (flow.ops() > 0) cuts.push_back(flow.ops());
  return cuts;
}

std::vector<SegmentRange> repeated_blocks(const StepGraph& graph) {
  const std::vector<OpId> cuts = cut_points(graph);
  const std::size_t pieces = cuts.size() - 1;
  // What a piece does, regardless of which values it does it to.
  std::vector<std::string> kind(pieces);
  for (std::size_t i = 0; i < pieces; ++i) {
    for (OpId op = cuts[i]; op < cuts[i + 1]; ++op) kind[i] += graph.ops[at(op)].name + ";";
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
