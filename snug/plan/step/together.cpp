#include "snug/plan/step/together.h"

#include <algorithm>
#include <vector>

#include "snug/plan/step/step_graph.h"

namespace snug::plan {
namespace {

/// By value: made together, and overwritten by a later operator.
std::vector<char> written_over(const StepGraph& graph) {
  const Dataflow& flow = graph.flow;
  std::vector<char> found(at(flow.values()), 0);
  for (OpId op = 0; op < flow.ops(); ++op) {
    for (const Output& out : flow.outputs(op)) {
      const ValueId v = out.overwrites;
      if (v != kNoValue && !flow.is_leaf(v) && flow.runs_together(flow.producer(v))) found[at(v)] = 1;
    }
  }
  return found;
}

void demand(StepGraph& graph, OpId op, Must must) {
  for (const Output& out : graph.flow.outputs(op)) graph.values[at(out.value)].must = must;
}

}  // namespace

bool may_replay_together(const StepGraph& graph) { return may_replay_together(graph, graph.flow.ops()); }

bool may_replay_together(const StepGraph& graph, OpId end) {
  const std::vector<char> over = written_over(graph);
  const auto is_kept = [&](ValueId v) { return graph.values[at(v)].must == Must::Keep; };
  // What is read of one that is written over is kept, or may need it again.
  const auto needs_it_again = [&](OpId op) {
    return std::ranges::any_of(graph.flow.inputs(op), [&](ValueId v) { return over[at(v)] != 0; }) &&
           !std::ranges::all_of(graph.flow.outputs(op), is_kept, &Output::value);
  };
  for (OpId op = 0; op < std::min(end, graph.flow.ops()); ++op) {
    if (needs_it_again(op)) return true;
    if (!graph.flow.runs_together(op)) continue;
    for (const Output& out : graph.flow.outputs(op)) {
      if (!graph.flow.is_leaf(out.value) && over[at(out.value)] == 0 && !is_kept(out.value)) return true;
    }
  }
  return false;
}

void let_go_of_what_is_written_over(StepGraph& graph) {
  const std::vector<char> over = written_over(graph);
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    if (over[at(v)] != 0) graph.values[at(v)].must = Must::Recompute;
  }
}

void keep_what_is_made_together(StepGraph& graph) {
  const std::vector<char> over = written_over(graph);
  for (OpId op = 0; op < graph.flow.ops(); ++op) {
    const bool reads_one = std::ranges::any_of(graph.flow.inputs(op), [&](ValueId v) { return over[at(v)] != 0; });
    if (reads_one || graph.flow.runs_together(op)) demand(graph, op, Must::Keep);
  }
  let_go_of_what_is_written_over(graph);
}

}  // namespace snug::plan
