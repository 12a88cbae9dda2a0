// A plan's file and a recorded step's.
#include <string_view>

#include "snug/base/errors.h"
#include "snug/plan/plan_file.h"
#include "snug/plan/planner.h"
#include "snug/plan/step/step_graph.h"
#include "tests/plan/synthetic_graph.h"

namespace {

using namespace snug::plan;

constexpr std::size_t kFewOps = 32, kFewValues = 64;

/// A chain of operators whose outputs are all saved, with `values` values, that may move and be compressed.
StepGraph chain_of(std::size_t values) {
  synthetic::GraphBuilder chain;
  chain.graph().moves.host.emplace();
  chain.graph().moves.disk.emplace();
  std::vector<ValueId> made = {chain.leaf()};
  while (made.size() < values) {
    made.push_back(chain.op("aten::relu", {made.back()}, 1024));
    for (const Codec codec : {Codec::Zeros, Codec::Int8})
      chain.graph().values.back().encodings.push_back(
          {.codec = codec, .element = 4, .content_bytes = 1024, .bytes = 512});
    chain.save(made.back());
    if (made.size() > 2) chain.die(made[made.size() - 2]);
  }
  chain.settle();
  while (made.size() > 1) {
    chain.node({made.back()}, 100);
    made.pop_back();
  }
  return chain.take();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    // Whatever is taken for a plan can be followed by a step with as many values.
    MemoryPlan plan = plan_file_from(snug::JsonFile(text, {.name = "f"}).root()).plan;
    const std::size_t values = plan.actions.size();
    if (values > 1 && values <= kFewValues) (void)Planner(chain_of(values), std::move(plan));
  } catch (const snug::Error&) {
  }
  try {
    const StepGraph graph = step_graph_from(snug::JsonFile(text, {.name = "f"}).root());
    // Whatever is taken for a step can be planned.
    if (graph.ops.size() <= kFewOps) (void)Planner(graph, "optimal", {.simulated_ops = 0}).floor(graph);
  } catch (const snug::Error&) {
  }
  return 0;
}
