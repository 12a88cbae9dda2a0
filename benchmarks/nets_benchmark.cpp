// Plans and eviction alone on a GPT, a ResNet and a U-Net: predicted against measured peaks and step times, every row
// in turns with the unplanned step.
//
// Usage: nets_benchmark [ROUNDS [gpt] [resnet] [unet]]. Budgets are the unplanned peak less 0 % to 100 % of what lies
// between it and the floor. Nothing is predicted of eviction but that it stays under the cap. Ends with the worst rows.
//        nets_benchmark record FOLDER [gpt] [resnet] [unet] writes their recorded steps to FOLDER/NAME.json instead,
//        for
// snug plan --graph and compare_plans.py.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>

#include "snug/memory/device_memory.h"
#include "snug/plan/plan_file.h"
#include "snug/plan/planner.h"
#include "snug/plan/run/presets.h"
#include "snug/train/bench.h"
#include "tests/equivalence/nets.h"

namespace {

using snug::Bytes;

constexpr double kTurnSeconds = 1.5;

void forget_gradients(const snug::testing::Task& task) {
  for (at::Tensor& p : task.model->parameters()) p.mutable_grad() = at::Tensor();
}

snug::plan::StepGraph record(const snug::testing::Task& task) {
  task.forward().backward();  // what LibTorch loads on first use
  forget_gradients(task);
  return snug::replay::record_step(task.forward, snug::memory::device_memory(c10::kCPU)).graph;
}

void measure(const snug::testing::Task& task, std::int64_t rounds) {
  const auto forget = [&] { forget_gradients(task); };
  const auto graph = record(task);
  const Bytes highest = snug::plan::Budget::for_limit(1).floor_for(snug::plan::plan_none(graph).predicted_peak);
  const Bytes lowest = snug::plan::Budget::for_limit(1).floor_for(snug::plan::Planner(graph, "optimal").floor(graph));
  const Bytes before = graph.static_bytes;

  snug::train::BenchOptions options;
  options.strategies = {"optimal", "eviction"};
  options.rounds = rounds;
  // Short steps are noisier.
  options.steps = std::clamp<std::int64_t>(static_cast<std::int64_t>(kTurnSeconds / graph.step_seconds), 2, 10);
  for (int tenth = 0; tenth <= 10; ++tenth) {
    options.budgets.emplace_back(highest - (highest - lowest) * tenth / 10);
  }
  auto progress = snug::report::Progress::for_terminal();
  const auto result = snug::train::bench(snug::train::bench_step(task.forward, forget, c10::kCPU), options, progress);
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
  const bool only_record = argc > 2 && std::string(argv[1]) == "record";
  const int named = only_record ? 3 : 2;
  const std::int64_t rounds = argc > 1 && !only_record ? std::stoll(argv[1]) : 3;
  at::set_num_threads(2);
  torch::manual_seed(0);
  const auto with = [&](const char* name, const std::function<snug::testing::Task()>& make) {
    if (argc > named && std::find(argv + named, argv + argc, std::string(name)) == argv + argc) return;
    if (only_record) {
      snug::plan::write_step_graph(std::filesystem::path(argv[2]) / (std::string(name) + ".json"), record(make()));
    } else {
      measure(make(), rounds);
    }
  };
  with("gpt", [] {
    return snug::testing::gpt_task({.blocks = 12, .width = 384, .heads = 6, .sequence = 256, .vocabulary = 8192}, 8);
  });
  with("resnet", [] { return snug::testing::resnet_task(32, 32, 48, 4); });
  with("unet", [] { return snug::testing::unet_task(24, 8, 96); });
}
