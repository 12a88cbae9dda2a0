// How long planning takes, how much memory, and how both grow: the search of all plans for a chain of GPT-like blocks,
// an unrolled recurrent network and a mixture of experts; one simulation and the lower bound. The argument is the
// number of operators: a step of a deep model has 2,500 in 250 blocks.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <algorithm>

#include "snug/plan/bound/lower_bound.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/trade_off.h"
#include "tests/plan/synthetic_graph.h"
#include "tests/plan/synthetic_large_graph.h"

namespace {

using namespace snug::plan;

StepGraph chain_of(const benchmark::State& state) {
  return synthetic::gpt_like({.blocks = static_cast<int>(state.range(0)) / synthetic::kOpsPerBlock});
}

StepGraph rnn_of(const benchmark::State& state) {
  return synthetic::unrolled_rnn(static_cast<int>(state.range(0)) / synthetic::kOpsPerRnnStep);
}

StepGraph experts_of(const benchmark::State& state) {
  return synthetic::experts(std::max(1, static_cast<int>(state.range(0)) / synthetic::kOpsPerExpertsLayer));
}

/// Highest resident memory of the process until now: run one argument at a time (--benchmark_filter) to compare.
double mebibytes_at_peak() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

template <StepGraph make(const benchmark::State&)>
void BM_SearchPlans(benchmark::State& state) {
  const StepGraph graph = make(state);
  for (auto _ : state) benchmark::DoNotOptimize(TradeOff(graph));
  state.SetComplexityN(graph.flow.ops());
  state.counters["ops"] = static_cast<double>(graph.flow.ops());
  state.counters["peak_MiB"] = mebibytes_at_peak();
}
void sizes(benchmark::internal::Benchmark* search) {
  for (const int ops : {250, 2'500, 25'000, 250'000}) search->Arg(ops);
  search->Unit(benchmark::kSecond)->Iterations(1)->Complexity();
}
BENCHMARK(BM_SearchPlans<chain_of>)->Apply(sizes);
BENCHMARK(BM_SearchPlans<rnn_of>)->Apply(sizes);
BENCHMARK(BM_SearchPlans<experts_of>)->Apply(sizes);

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
