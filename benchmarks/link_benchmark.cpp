// gpt-12x384 on a simulated accelerator whose compute, memory and link to the host are those of real ones: what plans
// take that move and recompute, that recompute alone and that offload alone, and what no plan beats.
//
// Usage: link_benchmark [SHARE-OF-PEAK...]. Kernels take as long as their arithmetic at that share of the device's peak
// (1 and 0.6 unless given), or their operands at its memory's bandwidth; nothing is measured, all is counted on the
// simulated clock (see tests/device/streams.h). Of 20 budgets from the floor to the unplanned peak every fourth is run,
// and compared with the plain step bit by bit; so are plans that leave a fifth of the activations, with the plain loss
// and with the loss in tiles. It takes about a quarter of an hour.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "snug/models/gpt.h"
#include "snug/plan/bound/lower_bound.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/search/hidden_copies.h"
#include "snug/replay/moves.h"
#include "snug/snug.h"
#include "tests/device/simulated_device.h"
#include "tests/device/test_device.h"
#include "tests/equivalence/bitwise.h"

namespace snug {
namespace {

constexpr int kBudgets = 20, kRunEvery = 4;
constexpr double kMiB = 1_MiB;
const c10::Device kDevice(testing::kSimulated, 0);

/// Peaks in fp32 and links as NVIDIA's data sheets have them; of the links what copies reach.
struct Accelerator {
  const char* name;
  testing::SimulatedSpeed speed;
};
const std::vector<Accelerator> kAccelerators = {
    {"12 GB/s (PCIe 3), 8.1 Tflop/s and 320 GB/s (T4)",
     {.bytes_per_second = 12e9, .kernel_seconds = 5e-6, .flops_per_second = 8.1e12, .memory_bytes_per_second = 320e9}},
    {"55 GB/s (PCIe 5), 30.9 Tflop/s and 672 GB/s (RTX 5070)",
     {.bytes_per_second = 55e9, .kernel_seconds = 3e-6, .flops_per_second = 30.9e12, .memory_bytes_per_second = 672e9}},
    {"55 GB/s (PCIe 5), 51 Tflop/s and 2 TB/s (H100 PCIe)",
     {.bytes_per_second = 55e9, .kernel_seconds = 3e-6, .flops_per_second = 51e12, .memory_bytes_per_second = 2e12}},
};

struct Step {
  explicit Step(const models::VocabularyLoss& loss = models::PlainLoss{}) {
    torch::manual_seed(0);
    model = models::Gpt(
        models::GptOptions{.blocks = 12, .width = 384, .heads = 6, .sequence = 256, .vocabulary = 8192, .loss = loss});
    model->to(kDevice);
    tokens = torch::randint(0, 8192, {8, 256}).to(kDevice);
    targets = torch::randint(0, 8192, {8, 256}).to(kDevice);
  }
  at::Tensor loss() { return model->loss(tokens, targets); }
  std::vector<at::Tensor> gradients() {
    std::vector<at::Tensor> all;
    for (const at::Tensor& p : model->parameters()) all.push_back(p.grad().cpu());
    model->zero_grad();
    return all;
  }

  models::Gpt model{nullptr};
  at::Tensor tokens, targets;
};

template <class Run>
double simulated_seconds(const Run& run) {
  testing::Streams::instance().wait_for_all();
  const double began = testing::Streams::instance().host_clock();
  run();
  testing::Streams::instance().wait_for_all();
  return testing::Streams::instance().host_clock() - began;
}

double seconds_within(const plan::TradeOff& plans, const plan::StepGraph& graph, Bytes budget) {
  try {
    return plans.best(graph, {budget, 0}).predicted_seconds;
  } catch (const DoesNotFit&) {
    return std::numeric_limits<double>::infinity();
  }
}

/// Plans that recompute nothing.
std::vector<plan::MemoryPlan> offloading_alone(const plan::StepGraph& graph) {
  std::vector<plan::MemoryPlan> plans{plan::plan_none(graph)};
  for (plan::MemoryPlan& plan : plan::offloading_plans(graph)) plans.push_back(plan::predicted(graph, std::move(plan)));
  plan::Effort effort{1'000'000'000};
  return plan::front_of(plan::with_copies_staged(graph, std::move(plans), effort));
}

/// Runs the plan; returns its line's end.
std::string run(Step& step, const replay::RecordedStep& recorded, const plan::MemoryPlan& plan,
                const std::vector<at::Tensor>& expected) {
  memory::DeviceMemory& memory = memory::device_memory(kDevice);
  Session session(recorded, plan::Planner(recorded.graph, plan), std::nullopt, memory);
  session.use(std::make_shared<memory::Tiers>(memory::TierBudgets{.host = 4_GiB}));
  memory.reset_peak();
  const double seconds = simulated_seconds([&] { session.backward([&] { return step.loss(); }); });
  const auto peak = static_cast<double>(memory.stats().allocated_peak);
  const std::vector<at::Tensor> found = step.gradients();
  int differ = 0;
  for (std::size_t i = 0; i < found.size(); ++i) differ += testing::same_bits(found[i], expected[i]) ? 0 : 1;
  return fmt::format("{:+.2f} % | {:+.2f} % | {} of {}", 100 * (seconds / session.plan().predicted_seconds - 1),
                     100 * (peak / static_cast<double>(session.plan().predicted_peak) - 1), differ, found.size());
}

struct RecordedWithLink {
  Step step;
  replay::RecordedStep recorded;
};

RecordedWithLink recorded_with_link(const testing::SimulatedSpeed& speed, const models::VocabularyLoss& loss) {
  memory::DeviceMemory& memory = memory::device_memory(kDevice);
  testing::settled(memory);  // of what was measured before
  RecordedWithLink made{.step = Step(loss), .recorded = {}};
  made.recorded = replay::record_step([&] { return made.step.loss(); }, memory);
  made.recorded.graph.moves.host = replay::measured_move_cost(memory);
  made.recorded.graph.moves.host->out_seconds_per_byte = made.recorded.graph.moves.host->in_seconds_per_byte =
      1 / speed.bytes_per_second;
  return made;
}

/// The step as if something else needed so much memory between forward and backward that a plan within `budget` has no
/// more than `most` there of its own.
plan::StepGraph with_no_more_between(plan::StepGraph graph, Bytes budget, Bytes most) {
  plan::Event other;
  other.peak = std::max<Bytes>(budget - graph.static_bytes - most, 0);
  graph.events.insert(graph.events.begin() + static_cast<std::ptrdiff_t>(graph.settle_event()) + 1, other);
  return graph;
}

constexpr const char* kFifthHeader =
    "\nThe fastest plan that leaves at most a fifth of what the step has between forward and backward:\n\n"
    "| loss | the step, over the plain one | has, MiB | budget, MiB | left | moved, MiB | time over its own step | "
    "over "
    "the plain step | no plan is faster than, over its own | run: time | peak | tensors that differ |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|\n";

Bytes moved_by(const plan::StepGraph& graph, const plan::MemoryPlan& plan) {
  Bytes moved = 0;
  for (plan::ValueId v = 0; v < graph.flow.values(); ++v)
    moved += plan.action(v) == plan::kMove ? graph.step_bytes(v) : 0;
  return moved;
}

/// Of budgets a little above the floor.
void measure_fifth(RecordedWithLink& made, const std::string& loss, double plain_seconds) {
  const plan::StepGraph& graph = made.recorded.graph;
  made.step.loss().backward();
  const std::vector<at::Tensor> expected = made.step.gradients();
  const plan::MemoryPlan none = plan::plan_none(graph);
  const auto between = [&](const plan::MemoryPlan& plan) {
    return plan::simulate(graph, plan).after_forward - graph.static_bytes;
  };
  const Bytes all = between(none);
  const Bytes floor = plan::TradeOff(graph).floor();
  const double own = graph.step_seconds;
  for (const Bytes above : {16_MiB, 64_MiB}) {
    const plan::StepGraph asked = with_no_more_between(graph, floor + above, all / 5);
    const plan::TradeOff plans(asked);
    if (plans.floor() > floor + above) {
      fmt::print("| {} | x {:.3f} | {:.1f} | {:.1f} | - | | | | | | | |\n", loss, own / plain_seconds,
                 static_cast<double>(all) / kMiB, static_cast<double>(floor + above) / kMiB);
      continue;
    }
    const plan::MemoryPlan plan = plans.best(asked, {floor + above, 0});
    fmt::print("| {} | x {:.3f} | {:.1f} | {:.1f} | {:.1f} % | {:.0f} | x {:.3f} | x {:.3f} | x {:.3f} | {} |\n", loss,
               own / plain_seconds, static_cast<double>(all) / kMiB, static_cast<double>(floor + above) / kMiB,
               100 * static_cast<double>(between(plan)) / static_cast<double>(all),
               static_cast<double>(moved_by(graph, plan)) / kMiB, plan.predicted_seconds / own,
               plan.predicted_seconds / plain_seconds, plan::lower_bound(asked, floor + above).step_seconds / own,
               run(made.step, made.recorded, plan::predicted(graph, plan), expected));
    std::fflush(stdout);
  }
}

void measure_fifths_of_tiled(double plain_seconds) {
  for (const std::int64_t tile : {8, 16, 32}) {
    RecordedWithLink made = recorded_with_link(testing::simulated_speed(), models::TiledLoss{.logits = tile * 1_MiB});
    measure_fifth(made, fmt::format("in tiles of {} MiB", tile), plain_seconds);
  }
}

/// Returns the plain step's seconds.
double measure(const Accelerator& accelerator, double share_of_peak) {
  testing::SimulatedSpeed speed = accelerator.speed;
  speed.flops_per_second *= share_of_peak;
  testing::set_simulated_speed(speed);
  RecordedWithLink made = recorded_with_link(speed, models::PlainLoss{});
  Step& step = made.step;
  const replay::RecordedStep& recorded = made.recorded;
  plan::StepGraph without = recorded.graph;
  without.moves = {};
  const plan::StepGraph& graph = recorded.graph;
  step.loss().backward();
  const std::vector<at::Tensor> expected = step.gradients();

  const plan::TradeOff both(graph), recompute(without);
  const auto offload = offloading_alone(graph);
  const plan::MemoryPlan none = plan::plan_none(graph);
  const Bytes all = plan::simulate(graph, none).after_forward - graph.static_bytes;
  fmt::print("\n## {}, at {:.0f} % of that\n\n", accelerator.name, 100 * share_of_peak);
  fmt::print(
      "The plain step takes {:.2f} ms and {:.1f} MiB, {:.1f} MiB of them between forward and backward; to move "
      "those takes {:.2f} ms each way.\n\n",
      1e3 * graph.step_seconds, static_cast<double>(none.predicted_peak) / kMiB, static_cast<double>(all) / kMiB,
      1e3 * graph.moves.host->out(all));
  fmt::print(
      "| budget, MiB | activations | moved, MiB | recomputed again | move and recompute | recompute alone | "
      "offload alone | no plan is faster than | run: time | peak | tensors that differ |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n");
  const Bytes floor = both.floor();
  for (int i = 0; i < kBudgets; ++i) {
    const Bytes budget = floor + (none.predicted_peak - floor) * i / kBudgets;
    const plan::MemoryPlan plan = both.best(graph, {budget, 0});
    const plan::Simulation simulation = plan::simulate(graph, plan);
    const auto times = [&](double seconds) { return fmt::format("x {:.3f}", seconds / graph.step_seconds); };
    const bool offloads = offload.back().predicted_peak <= budget;
    fmt::print(
        "| {:.1f} | -{:.0f} % | {:.0f} | {} | {} | {} | {} | {} | {} |\n", static_cast<double>(budget) / kMiB,
        100 - 100 * static_cast<double>(simulation.after_forward - graph.static_bytes) / static_cast<double>(all),
        static_cast<double>(moved_by(graph, plan)) / kMiB, simulation.replayed_ops, times(plan.predicted_seconds),
        times(seconds_within(recompute, without, budget)),
        offloads ? times(plan::fastest_within(offload, budget).predicted_seconds) : "-",
        times(plan::lower_bound(graph, budget).step_seconds),
        i % kRunEvery == 0 ? run(step, recorded, plan, expected) : " | | ");
    std::fflush(stdout);
  }
  fmt::print("{}", kFifthHeader);
  measure_fifth(made, "plain", graph.step_seconds);
  return graph.step_seconds;
}

int run_all(int argc, char** argv) {
  testing::install_simulated_devices();
  std::vector<double> shares;
  for (int i = 1; i < argc; ++i) shares.push_back(std::atof(argv[i]));
  if (shares.empty()) shares = {1, 0.6};
  fmt::print("# gpt-12x384 in fp32 on simulated accelerators: moving, recomputing, and both\n");
  for (const Accelerator& accelerator : kAccelerators) {
    for (const double share : shares) measure_fifths_of_tiled(measure(accelerator, share));
  }
  return 0;
}

}  // namespace
}  // namespace snug

int main(int argc, char** argv) { return snug::run_all(argc, argv); }
