#include "snug/plan/step/step_walk.h"

namespace snug::plan {
namespace {

struct Lives : StepVisitor {
  Lives(const StepWalk& walk, std::size_t values) : walk_(walk), result(values) {}
  void die(ValueId v) { result[at(v)].dies = walk_.position(); }
  void unpack(ValueId v) { result[at(v)].last_unpack = walk_.position(); }

 private:
  const StepWalk& walk_;

 public:
  std::vector<Lifetime> result;
};

}  // namespace

StepWalk::StepWalk(const StepGraph& graph)
    : graph_(&graph),
      next_(graph.events.data()),
      end_(graph.events.data() + graph.events.size()),
      flags_(graph.values.size(), 0),
      unowned_(graph.static_bytes) {}

std::vector<Lifetime> lifetimes(const StepGraph& graph) {
  StepWalk walk(graph);
  Lives lives(walk, graph.values.size());
  while (!walk.at_end()) walk.step(lives);
  return std::move(lives.result);
}

}  // namespace snug::plan
