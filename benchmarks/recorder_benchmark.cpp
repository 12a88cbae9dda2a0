// What recording costs: per operator, and on a whole step of gpt-12x384 with everything kept. Plain and recorded runs
// take turns in one process, so that the ratio stands on a noisy machine.
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <algorithm>
#include <vector>

#include "snug/base/clock.h"
#include "snug/memory/device_memory.h"
#include "snug/models/gpt.h"
#include "snug/record/recording.h"
#include "snug/replay/session.h"

namespace {

constexpr int kOps = 2500;  // a step of a large model

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

double seconds_of(const std::function<void()>& run) {
  const double started = snug::monotonic_seconds();
  run();
  return snug::monotonic_seconds() - started;
}

/// The added nanoseconds per operator, on additions of four numbers.
void BM_RecordOneOperator(benchmark::State& state) {
  const torch::NoGradGuard no_grad;
  const at::Tensor x = torch::randn({4});
  const auto chain = [&] {
    at::Tensor y = x;
    for (int i = 0; i < kOps; ++i) y = y.add(x);
    benchmark::DoNotOptimize(y);
  };
  std::vector<double> plain, recorded;
  for (auto _ : state) {
    plain.push_back(seconds_of(chain));
    const double seconds = seconds_of([&] {
      const auto tape = std::make_shared<snug::record::Tape>(snug::record::KeepSaved{});
      const snug::record::Recording recording(tape);
      chain();
    });
    recorded.push_back(seconds);
    state.SetIterationTime(seconds);
  }
  state.counters["plain_ns_per_op"] = median(plain) / kOps * 1e9;
  state.counters["added_ns_per_op"] = (median(recorded) - median(plain)) / kOps * 1e9;
}
BENCHMARK(BM_RecordOneOperator)->Iterations(101)->UseManualTime()->Unit(benchmark::kMillisecond);

/// A step of gpt-12x384 under a session that keeps everything, against the same step as LibTorch runs it.
void BM_StepWithEverythingKept(benchmark::State& state) {
  torch::manual_seed(0);
  snug::models::Gpt model(
      snug::models::GptOptions{.blocks = 12, .width = 384, .heads = 6, .sequence = 256, .vocabulary = 8192});
  const at::Tensor tokens = torch::randint(0, 8192, {8, 256}), targets = torch::randint(0, 8192, {8, 256});
  const auto forward = [&] { return model->loss(tokens, targets); };
  auto& memory = snug::memory::device_memory(c10::kCPU);
  snug::Session session(snug::replay::record_step(forward, memory), "none", std::nullopt, memory);
  std::vector<double> plain, ratio;
  bool plain_first = false;
  double without = 0, with = 0;
  const auto run_plain = [&] {
    model->zero_grad();
    without = seconds_of([&] { forward().backward(); });
  };
  const auto run_session = [&] {
    model->zero_grad();
    with = seconds_of([&] { session.backward(forward); });
  };
  for (auto _ : state) {
    plain_first = !plain_first;
    if (plain_first) run_plain();
    run_session();
    if (!plain_first) run_plain();
    state.SetIterationTime(with);
    plain.push_back(without);
    ratio.push_back(with / without);
  }
  std::ranges::sort(ratio);
  state.counters["plain_s"] = median(plain);
  state.counters["ratio_median"] = ratio[ratio.size() / 2];
  state.counters["ratio_quarter"] = ratio[ratio.size() / 4];
  state.counters["ratio_three_quarters"] = ratio[ratio.size() * 3 / 4];
  state.counters["ops"] = static_cast<double>(session.graph().ops.size());
}
BENCHMARK(BM_StepWithEverythingKept)->Iterations(20)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
