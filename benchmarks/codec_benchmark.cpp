// Codecs alone: training steps that keep all that autograd saves, compressed wherever that takes fewer bytes, in turns
// with plain steps.
//
// Usage: codec_benchmark [ROUNDS]. Nothing is recomputed or moved; bits are compared, too.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "snug/base/clock.h"
#include "snug/models/resnet.h"
#include "snug/plan/run/explanation.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/step/legal_actions.h"
#include "snug/snug.h"
#include "tests/equivalence/nets.h"

namespace snug {
namespace {

constexpr double kMiB = 1_MiB;
constexpr std::array kShares = {0.75, 0.0};  // of the bytes; 0: as few as codecs can make them

Bytes between_passes(const plan::StepGraph& graph, const plan::MemoryPlan& plan) {
  return plan::simulate(graph, plan).after_forward - graph.static_bytes;
}

/// Compresses the cheapest per byte that is saved first, until there are no more than that share of the bytes between
/// forward and backward.
plan::MemoryPlan compressing(const plan::StepGraph& graph, double share) {
  struct Candidate {
    plan::ValueId value;
    plan::Action action;
    double seconds_per_byte;
  };
  std::vector<Candidate> candidates;
  for (plan::ValueId v = 0; v < graph.flow.values(); ++v) {
    for (const plan::Action action : plan::legal_actions(graph, v)) {
      if (!plan::is_compressed(action)) continue;
      const plan::Encoding& encoding = *plan::find_encoding(graph.values[plan::at(v)].encodings, action.codec);
      candidates.push_back({v, action,
                            (encoding.encode_seconds + encoding.decode_seconds) /
                                static_cast<double>(graph.step_bytes(v) - encoding.bytes)});
    }
  }
  std::ranges::sort(candidates, {}, &Candidate::seconds_per_byte);
  plan::MemoryPlan plan = plan::plan_none(graph);
  const auto most = static_cast<Bytes>(share * static_cast<double>(between_passes(graph, plan)));
  for (const Candidate& c : candidates) {
    if (between_passes(graph, plan) <= most) break;
    plan.actions[plan::at(c.value)] = c.action;
  }
  return plan::predicted(graph, std::move(plan));
}

void measure(const std::string& name, torch::nn::Module& model, const std::function<at::Tensor()>& forward, int rounds,
             double share) {
  memory::DeviceMemory& memory = memory::device_memory(c10::kCPU);
  const auto gradients = [&] {
    std::vector<at::Tensor> all;
    for (const at::Tensor& p : model.parameters()) all.push_back(p.grad().clone());
    model.zero_grad();
    return all;
  };
  const auto plain = [&] {
    const double began = monotonic_seconds();
    forward().backward();
    return monotonic_seconds() - began;
  };
  plain();
  model.zero_grad();
  const replay::RecordedStep step = replay::record_step(forward, memory);
  const plan::StepGraph& graph = step.graph;
  const plan::MemoryPlan none = plan::plan_none(graph), plan = compressing(graph, share);
  const auto saved = [&](const plan::MemoryPlan& of) { return static_cast<double>(between_passes(graph, of)); };
  Session session(step, plan::Planner(graph, plan), std::nullopt, memory);
  const auto compressed = [&] {
    const double began = monotonic_seconds();
    session.backward(forward);
    return monotonic_seconds() - began;
  };
  compressed();
  model.zero_grad();
  std::vector<double> ratios;
  int differ = 0;
  for (int i = 0; i < rounds; ++i) {
    const double first = plain();
    const auto expected = gradients();
    const double second = compressed();
    const auto found = gradients();
    for (std::size_t k = 0; k < found.size(); ++k) differ += at::equal(found[k], expected[k]) ? 0 : 1;
    ratios.push_back(second / first);
  }
  std::ranges::sort(ratios);
  const plan::Explanation why = plan::explain(graph, plan);
  fmt::print("| {} | {:.1f} | {:.1f} | -{:.1f} % | {:.1f} in {:.1f} | x {:.3f} ({:.3f} to {:.3f}) | x {:.3f} | {} |\n",
             name, saved(none) / kMiB, saved(plan) / kMiB, 100 - 100 * saved(plan) / saved(none),
             static_cast<double>(why.all.compressed) / kMiB, static_cast<double>(why.all.encoded) / kMiB,
             ratios[ratios.size() / 2], ratios[ratios.size() / 4], ratios[ratios.size() * 3 / 4],
             plan.predicted_seconds / graph.step_seconds, differ);
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  const int rounds = argc > 1 ? std::stoi(argv[1]) : 9;
  torch::manual_seed(0);
  fmt::print(
      "| net | saved, MiB | with codecs, MiB | | compressed, MiB | step, with / plain | predicted | tensors that "
      "differ |\n"
      "|---|---|---|---|---|---|---|---|\n");
  const auto small = testing::resnet_task(32, 32, 48, 4);
  for (const double share : kShares) measure("small ResNet, 32 of 48 x 48", *small.model, small.forward, rounds, share);
  models::Resnet resnet(models::resnet_options("ResNet-18"));
  const at::Tensor images = torch::randn({8, 3, 224, 224}), labels = torch::randint(0, 1000, {8});
  const auto loss = [&] { return resnet->loss(images, labels); };
  for (const double share : kShares) measure("ResNet-18, 8 of 224 x 224", *resnet, loss, rounds, share);
  return 0;
}

}  // namespace
}  // namespace snug

int main(int argc, char** argv) { return snug::run(argc, argv); }
