// Weights, gradients and optimizer state that are streamed, in turns with plain steps that have all of them in memory.
//
// Usage: streamed_benchmark CONFIG [ROUNDS]. For each budget, from the host's memory and from a disk; bits are
// compared, too.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <vector>

#include "snug/base/clock.h"
#include "snug/memory/held_limit.h"
#include "snug/snug.h"
#include "snug/train/experiment.h"
#include "snug/train/planned_experiment.h"
#include "snug/train/training_step.h"

namespace snug {
namespace {

constexpr double kMiB = 1_MiB;

Bytes bytes_of(const std::vector<at::Tensor>& tensors) {
  Bytes bytes = 0;
  for (const at::Tensor& t : tensors) bytes += static_cast<Bytes>(t.nbytes());
  return bytes;
}

template <class Backward>
double step(train::Experiment& experiment, train::TrainingStep& training, std::int64_t i, const Backward& backward) {
  const data::Batch batch = experiment.train_batch(i);
  const double began = monotonic_seconds();
  backward(batch, i);
  training.clip();
  training.update(i);
  return monotonic_seconds() - began;
}

/// `budget`: beside what the plain steps have in memory.
void measure(const train::Config& config, const std::string& tier, Bytes budget, int rounds) {
  train::Config of_streamed = config;
  train::Experiment plain(config);
  train::TrainingStep plain_step(plain);
  memory::DeviceMemory& memory = plain.memory();
  train::set_key(of_streamed, fmt::format("memory.budget={}", memory.stats().allocated + budget));
  train::set_key(of_streamed, fmt::format("memory.{}_budget=64GiB", tier));
  of_streamed.memory.weights = train::KeptIn::Streamed;
  train::Experiment streamed(of_streamed);
  train::TrainingStep streamed_step(streamed);
  train::PlannedExperiment planned = train::plan_experiment(streamed, train::Kinds::Training);
  const plan::StepGraph& graph = planned.kinds.front().step.graph;
  const double predicted = planned.window.cost.seconds + graph.update_seconds +
                           replay::plan_all(planned.kinds, planned.budget).front().predicted_seconds;
  const double unplanned = graph.step_seconds + graph.update_seconds;
  Session session = train::session_of(streamed, std::move(planned.kinds), planned.budget);
  std::vector<double> ratios;
  Bytes peak = 0;
  for (int i = 0; i <= rounds; ++i) {
    double first = 0;
    {
      const memory::HeldLimit none(memory, std::nullopt);
      first = step(plain, plain_step, i,
                   [&](const data::Batch& batch, std::int64_t update) { plain_step.backward_plain(batch, update); });
      memory.release_cached();
    }
    memory.reset_peak();
    const double second = step(streamed, streamed_step, i, [&](const data::Batch& batch, std::int64_t update) {
      streamed_step.backward(session, batch, update);
    });
    peak = std::max(peak, memory.stats().allocated_peak);
    if (i > 0) ratios.push_back(second / first);  // the first shows in which order weights are used
  }
  std::ranges::sort(ratios);
  int differ = 0;
  const auto expected = plain.model().parameters(), found = streamed.model().parameters();
  for (std::size_t k = 0; k < expected.size(); ++k) differ += at::equal(expected[k], found[k]) ? 0 : 1;
  const Bytes beside = bytes_of(expected) + bytes_of(plain.optimizer().state());
  fmt::print(
      "| {} | {:.0f} | {:.0f} | {:.0f} | {:.0f} | {:.0f}, {:.0f} | x {:.2f} ({:.2f} to {:.2f}) | x {:.2f} | {} |\n",
      tier, static_cast<double>(budget) / kMiB, static_cast<double>(peak - beside) / kMiB,
      static_cast<double>(planned.window.streamed) / kMiB, static_cast<double>(planned.window.window.bytes) / kMiB,
      static_cast<double>(planned.window.cost.in) / kMiB, static_cast<double>(planned.window.cost.out) / kMiB,
      ratios[ratios.size() / 2], ratios[ratios.size() / 4], ratios[ratios.size() * 3 / 4], predicted / unplanned,
      differ);
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  const train::Config config = train::load_config(argc > 1 ? argv[1] : "examples/gpt-12x384.toml");
  const int rounds = argc > 2 ? std::stoi(argv[2]) : 7;
  train::warm_up(config);
  fmt::print(
      "| from | budget, MiB | peak | streamed | window | come, leave in a step | step, streamed / plain | predicted | "
      "weights that differ |\n"
      "|---|---|---|---|---|---|---|---|---|\n");
  for (const Bytes budget : {600_MiB, 400_MiB, 300_MiB}) {
    for (const char* tier : {"host", "disk"}) measure(config, tier, budget, rounds);
  }
  return 0;
}

}  // namespace
}  // namespace snug

int main(int argc, char** argv) { return snug::run(argc, argv); }
