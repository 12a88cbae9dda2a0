#include "snug/plan/bound/unavoidable.h"

#include <algorithm>

#include "snug/plan/step/step_walk.h"

namespace snug::plan {
namespace {

/// What an event takes for itself, and the values that may count from this event on, or not any more.
struct Touched : StepVisitor {
  explicit Touched(const StepGraph& graph) : graph_(graph) {}
  void run(OpId op) {
    transient = graph_.ops[at(op)].peak_bytes;
    for (const Output& out : graph_.flow.outputs(op)) {
      if (out.overwrites != kNoValue) values.push_back(out.overwrites);
      values.push_back(out.value);
    }
  }
  void die(ValueId v) { values.push_back(v); }
  void unpack(ValueId v) { values.push_back(v); }
  void release(ValueId v) { values.push_back(v); }
  void other(Bytes peak, Bytes /*net*/) { transient = peak; }
  void clear() {
    transient = 0;
    values.clear();
  }

  Bytes transient = 0;
  std::vector<ValueId> values;

 private:
  const StepGraph& graph_;
};

}  // namespace

std::vector<Bytes> unavoidable_bytes(const StepGraph& graph) {
  std::vector<char> counted(graph.values.size(), 0);
  std::vector<Bytes> result;
  result.reserve(graph.events.size());
  Touched touched(graph);
  Bytes of_values = 0;
  const std::size_t turn = graph.turn_event();
  Bytes held = 0;
  for (StepWalk walk(graph); !walk.at_end();) {
    if (walk.position() == turn) held = walk.unowned() + of_values - graph.static_bytes;
    const Bytes before = walk.unowned() + of_values;
    touched.clear();
    walk.step(touched);
    for (const ValueId v : touched.values) {
      // What cannot be made again stays, unless it is written over.
      const bool stays = graph.flow.is_leaf(v) && counted[at(v)] != 0 && !walk.overwritten(v);
      const bool counts = walk.alive(v) || walk.unpacked(v) || stays;
      if (counts != (counted[at(v)] != 0)) of_values += counts ? graph.step_bytes(v) : -graph.step_bytes(v);
      counted[at(v)] = counts;
    }
    result.push_back(std::max(before + touched.transient, walk.unowned() + of_values));
  }
  const Bytes of_others = (graph.in_flight - 1) * held + graph.others_held;
  const std::size_t over = std::min(of_others != 0 ? graph.backward_end() : 0, result.size());
  for (std::size_t i = 0; i < over; ++i) result[i] += of_others;
  return result;
}

}  // namespace snug::plan
