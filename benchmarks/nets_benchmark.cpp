// Plans and eviction alone on a GPT, a ResNet and a U-Net: predicted against measured peaks and step times, every row
// in turns with the unplanned step.
//
// Usage: nets_benchmark [ROUNDS [gpt] [resnet] [unet]]. Budgets are the unplanned peak less 0 % to 100 % of what lies
// between it and the floor. Nothing is predicted of eviction but that it stays under the cap. Ends with the worst rows.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "snug/memory/device_memory.h"
#include "snug/plan/planner.h"
#include "snug/plan/run/presets.h"
#include "snug/train/bench.h"
#include "tests/equivalence/nets.h"

namespace {

using snug::Bytes;

constexpr double kTurnSeconds = 1.5;

void measure(const snug::testing::Task& task, std::int64_t rounds) {
  auto& memory = snug::memory::device_memory(c10::kCPU);
  const auto forget = [&] {
    for (at::Tensor& p : task.model->parameters()) p.mutable_grad() = at::Tensor();
  };
  task.forward().backward();  // what LibTorch loads on first use
  forget();
  const auto graph = snug::replay::record_step(task.forward, memory).graph;
  const Bytes highest = snug::plan::Budget::for_limit(1).floor_for(snug::plan::plan_none(graph).predicted_peak);
  const Bytes lowest = snug::plan::Budget::for_limit(1).floor_for(snug::plan::Planner(graph, "optimal").floor(graph));
  const Bytes before = graph.static_bytes;

  snug::train::BenchOptions options;
  options.strategies = {"optimal", "eviction"};
  options.rounds = rounds;
  // Short steps are noisier.
  options.steps = std::clamp<std::int64_t>(static_cast<std::int64_t>(kTurnSeconds / graph.step_seconds), 2, 10);
  for (int tenth = 0; tenth <= 10; ++tenth) {
    options.budgets.push_back(fmt::format("{}B", highest - (highest - lowest) * tenth / 10));
  }
  auto progress = snug::report::Progress::for_terminal();
  const auto result = snug::train::bench(task.forward, forget, options, progress);
  std::fputs(render(result, task.name).c_str(), stdout);

  double peak = 0, time = 0, half = 0;
  for (const auto& row : result.rows) {
    if (!row.fits) continue;
    if (row.strategy == "optimal") {
      peak = std::max(peak, std::abs(static_cast<double>(row.measured_peak - row.predicted_peak)) /
                                static_cast<double>(row.predicted_peak));
      const double predicted = row.predicted_seconds / result.unplanned_seconds_recorded;
      time = std::max(time, std::abs(row.ratio_median / predicted - 1));
    } else if (2 * (*row.budget - before) >= result.unplanned_peak - before) {
      half = std::max(half, row.ratio_median);
    }
  }
  fmt::print(
      "{}: predicted peaks within {:.3f} %, predicted step times within {:.1f} %; eviction alone down to half of "
      "what the step adds: at most x {:.3f}\n\n",
      task.name, 100 * peak, 100 * time, half);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t rounds = argc > 1 ? std::stoll(argv[1]) : 3;
  at::set_num_threads(2);
  torch::manual_seed(0);
  const snug::models::GptOptions gpt{.blocks = 12, .width = 384, .heads = 6, .sequence = 256, .vocabulary = 8192};
  const auto wanted = [&](const std::string& name) {
    return argc <= 2 || std::find(argv + 2, argv + argc, name) != argv + argc;
  };
  if (wanted("gpt")) measure(snug::testing::gpt_task(gpt, 8), rounds);
  if (wanted("resnet")) measure(snug::testing::resnet_task(32, 32, 48, 4), rounds);
  if (wanted("unet")) measure(snug::testing::unet_task(24, 8, 96), rounds);
}
