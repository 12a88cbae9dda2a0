// How long planning takes, and how that grows: the search of all plans, one simulation and the lower bound, for chains
// of GPT-like blocks. Operators are what a step of a deep model has: 2,500 for 250 blocks.
#include <benchmark/benchmark.h>

#include "snug/plan/bound/lower_bound.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/trade_off.h"
#include "tests/plan/synthetic_graph.h"

namespace {

using namespace snug::plan;

StepGraph chain_of(const benchmark::State& state) {
  return synthetic::gpt_like({.blocks = static_cast<int>(state.range(0)) / synthetic::kOpsPerBlock});
}

void BM_SearchPlans(benchmark::State& state) {
  const StepGraph graph = chain_of(state);
  for (auto _ : state) benchmark::DoNotOptimize(TradeOff(graph));
  state.SetComplexityN(graph.flow.ops());
}
BENCHMARK(BM_SearchPlans)->Arg(250)->Arg(2500)->Arg(25000)->Unit(benchmark::kSecond)->Iterations(1)->Complexity();

void BM_Simulate(benchmark::State& state) {
  const StepGraph graph = chain_of(state);
  const MemoryPlan plan = plan_every_block(graph);
  for (auto _ : state) benchmark::DoNotOptimize(simulate(graph, plan));
  state.SetComplexityN(graph.flow.ops());
}
BENCHMARK(BM_Simulate)->Arg(250)->Arg(2500)->Arg(25000)->Unit(benchmark::kMillisecond)->Complexity();

void BM_LowerBound(benchmark::State& state) {
  const StepGraph graph = chain_of(state);
  const auto half = (plan_none(graph).predicted_peak + lower_bound_of_peak(graph)) / 2;
  for (auto _ : state) benchmark::DoNotOptimize(lower_bound(graph, half));
  state.SetComplexityN(graph.flow.ops());
}
BENCHMARK(BM_LowerBound)->Arg(250)->Arg(2500)->Arg(25000)->Unit(benchmark::kMillisecond)->Complexity();

}  // namespace

BENCHMARK_MAIN();
