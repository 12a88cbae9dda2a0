#include "snug/plan/step/excerpt.h"

#include <algorithm>

namespace snug::plan {

std::vector<Excerpt> excerpts(const StepGraph& graph, std::span<const OpId> cuts) {
  const Dataflow& flow = graph.flow;
  const std::size_t count = cuts.size() < 2 ? 0 : cuts.size() - 1;
  std::vector<Excerpt> result(count);
  std::vector<std::size_t> piece_of(at(flow.ops()), 0);  // by operator
  for (std::size_t p = 0; p < count; ++p) {
    result[p].begin = cuts[p];
    result[p].graph.moves = graph.moves;
    std::fill(piece_of.begin() + cuts[p], piece_of.begin() + cuts[p + 1], p);
  }
  // The id of each value in the piece that makes it.
  std::vector<ValueId> inner(at(flow.values()), kNoValue);
  std::vector<ValueId> known(at(flow.values()), kNoValue);  // in the piece that is being built
  for (std::size_t p = 0; p < count; ++p) {
    Excerpt& piece = result[p];
    const auto local = [&](ValueId v) {
      if (known[at(v)] != kNoValue) return known[at(v)];
      piece.values.push_back(v);
      piece.graph.values.push_back({.saved = graph.values[at(v)].saved});
      return known[at(v)] = piece.graph.flow.add_leaf();
    };
    std::vector<ValueId> inputs;
    for (OpId op = cuts[p]; op < cuts[p + 1]; ++op) {
      inputs.clear();
      for (ValueId v : flow.inputs(op)) inputs.push_back(local(v));
      for (const Output& out : flow.outputs(op)) {
        if (out.overwrites != kNoValue) local(out.overwrites);
      }
      piece.graph.flow.add_op(inputs, kRootSegment, flow.runs(op));
      piece.graph.flow.reads_group(flow.group(op));
      for (const Output& out : flow.outputs(op)) {
        const ValueId v = piece.graph.flow.add_output(out.overwrites == kNoValue ? kNoValue : local(out.overwrites));
        if (flow.is_leaf(out.value)) piece.graph.flow.make_leaf(v);
        piece.values.push_back(out.value);
        piece.graph.values.push_back(graph.values[at(out.value)]);
        known[at(out.value)] = inner[at(out.value)] = v;
      }
      piece.graph.ops.push_back(graph.ops[at(op)]);
      piece.graph.ops.back().other_bytes = 0;
    }
    for (ValueId v : piece.values) known[at(v)] = kNoValue;
    piece.leaving.assign(piece.values.size(), 0);
  }
  for (OpId op = 0; op < flow.ops(); ++op) {
    for (ValueId v : flow.inputs(op)) {
      if (flow.is_leaf(v)) continue;
      const std::size_t born = piece_of[at(flow.producer(v))];
      if (born != piece_of[at(op)]) result[born].leaving[at(inner[at(v)])] = 1;
    }
  }
  for (std::size_t i = 0; i < graph.events.size(); ++i) {
    const Event& e = graph.events[i];
    const auto add = [&](Excerpt& piece, std::int32_t id) {
      piece.graph.events.push_back({e.kind, id, 0, 0, 0});
      piece.events.push_back(i);
    };
    switch (e.kind) {
      case Event::Kind::Run: {
        Excerpt& piece = result[piece_of[at(e.id)]];
        add(piece, e.id - piece.begin);
        break;
      }
      case Event::Kind::Settle:
        for (Excerpt& piece : result) add(piece, -1);
        break;
      case Event::Kind::Other:
        break;
      default:
        // A leaf's events matter to nobody's memory.
        if (inner[at(e.id)] != kNoValue && !flow.is_leaf(e.id)) {
          add(result[piece_of[at(flow.producer(e.id))]], inner[at(e.id)]);
        }
    }
  }
  return result;
}

}  // namespace snug::plan
