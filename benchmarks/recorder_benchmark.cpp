// What recording costs: per operator, and on a whole step of gpt-12x384 with everything kept; and what verify_replay
// adds to a planned step. Plain and recorded runs
// take turns in one process, so that the ratio stands on a noisy machine.
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <algorithm>
#include <vector>

#include "snug/base/clock.h"
#include "snug/memory/device_memory.h"
#include "snug/models/gpt.h"
#include "snug/plan/run/presets.h"
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

class GptStep {
 public:
  GptStep() : model_(options()) {}
  at::Tensor loss() { return model_->loss(tokens_, targets_); }
  void forget_gradients() { model_->zero_grad(); }

 private:
  static snug::models::GptOptions options() {
    torch::manual_seed(0);
    return {.blocks = 12, .width = 384, .heads = 6, .sequence = 256, .vocabulary = 8192};
  }
  snug::models::Gpt model_;
  at::Tensor tokens_ = torch::randint(0, 8192, {8, 256}), targets_ = torch::randint(0, 8192, {8, 256});
};

/// One step of each kind in turns, the first one changing: counters of seconds without, and the ratio.
void compare_in_turns(benchmark::State& state, GptStep& step, const std::function<void()>& without,
                      const std::function<void()>& with) {
  std::vector<double> plain, ratio;
  bool plain_first = false;
  const auto timed = [&](const std::function<void()>& run) {
    step.forget_gradients();
    return seconds_of(run);
  };
  for (auto _ : state) {
    plain_first = !plain_first;
    double first = 0;
    if (plain_first) first = timed(without);
    const double second = timed(with);
    if (!plain_first) first = timed(without);
    state.SetIterationTime(second);
    plain.push_back(first);
    ratio.push_back(second / first);
  }
  std::ranges::sort(ratio);
  state.counters["without_s"] = median(plain);
  state.counters["ratio_median"] = ratio[ratio.size() / 2];
  state.counters["ratio_quarter"] = ratio[ratio.size() / 4];
  state.counters["ratio_three_quarters"] = ratio[ratio.size() * 3 / 4];
}

/// A step of gpt-12x384 under a session that keeps everything, against the same step as LibTorch runs it.
void BM_StepWithEverythingKept(benchmark::State& state) {
  GptStep step;
  const auto forward = [&] { return step.loss(); };
  auto& memory = snug::memory::device_memory(c10::kCPU);
  snug::Session session(snug::replay::record_step(forward, memory), "none", std::nullopt, memory);
  compare_in_turns(
      state, step, [&] { forward().backward(); }, [&] { session.backward(forward); });
  state.counters["ops"] = static_cast<double>(session.graph().ops.size());
}
BENCHMARK(BM_StepWithEverythingKept)->Iterations(20)->UseManualTime()->Unit(benchmark::kMillisecond);

/// A planned step of gpt-12x384 at 60 % that hashes what it drops, against the same step without hashes.
void BM_VerifiedReplay(benchmark::State& state) {
  GptStep step;
  const auto forward = [&] { return step.loss(); };
  auto& memory = snug::memory::device_memory(c10::kCPU);
  auto recorded = snug::replay::record_step(forward, memory);
  const auto unplanned = snug::plan::plan_none(recorded.graph).predicted_peak;
  snug::Session session(std::move(recorded), "optimal", snug::plan::Budget::for_limit(unplanned * 6 / 10), memory);
  compare_in_turns(
      state, step,
      [&] {
        session.verify_replays(snug::VerifyReplay::Off);
        session.backward(forward);
      },
      [&] {
        session.verify_replays(snug::VerifyReplay::Hashes);
        session.backward(forward);
      });
  state.counters["replayed"] = static_cast<double>(session.last_step().replayed_ops);
}
BENCHMARK(BM_VerifiedReplay)->Iterations(20)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
