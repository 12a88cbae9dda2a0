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

struct Unavoidable {
  std::vector<Bytes> by_event;  // of one micro-batch
  Bytes in_between = 0;
};

Unavoidable of_one(const StepGraph& graph) {
  std::vector<char> counted(graph.values.size(), 0);
  Unavoidable result;
  result.by_event.reserve(graph.events.size());
  Touched touched(graph);
  Bytes of_values = 0;
  const std::size_t turn = graph.turn_event();
  for (StepWalk walk(graph); !walk.at_end();) {
    if (walk.position() == turn) result.in_between = walk.unowned() + of_values - graph.static_bytes;
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
    result.by_event.push_back(std::max(before + touched.transient, walk.unowned() + of_values));
  }
  return result;
}

}  // namespace

std::vector<Bytes> unavoidable_bytes(const StepGraph& graph) {
  Unavoidable all = of_one(graph);
  std::vector<Bytes> result = std::move(all.by_event);
  const Bytes of_others = (graph.in_flight - 1) * all.in_between + graph.others_held;
  const std::size_t over = std::min(of_others != 0 ? graph.backward_end() : 0, result.size());
  for (std::size_t i = 0; i < over; ++i) result[i] += of_others;
  return result;
}

Bytes unavoidable_in_between(const StepGraph& graph) { return of_one(graph).in_between; }

}  // namespace snug::plan
