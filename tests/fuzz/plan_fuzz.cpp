// A plan's file and a recorded step's.
#include <string_view>

#include "snug/base/errors.h"
#include "snug/plan/plan_file.h"
#include "snug/plan/planner.h"
#include "snug/plan/step/step_graph.h"

namespace {
constexpr std::size_t kFewOps = 32;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    (void)snug::plan::plan_file_from(snug::JsonFile(text, {.name = "f"}).root());
  } catch (const snug::Error&) {
  }
  try {
    const snug::plan::StepGraph graph = snug::plan::step_graph_from(snug::JsonFile(text, {.name = "f"}).root());
    // Whatever is taken for a step can be planned.
    if (graph.ops.size() <= kFewOps) (void)snug::plan::Planner(graph, "optimal", {.simulated_ops = 0}).floor(graph);
  } catch (const snug::Error&) {
  }
  return 0;
}
