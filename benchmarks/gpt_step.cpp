// Steps of gpt-12x384 on demand, for what measures snug against PyTorch step by step.
//
// Usage: gpt_step fp32|bf16 [BYTES [TILE]]. Without BYTES, or with 0, the plain step, without a session; with BYTES a
// planned one under a cap of so many bytes above what is there before the step; with TILE its loss is tiled, so many
// bytes of logits at a time, and its attention is by products (ops::attention). First it writes one JSON
// object, then it runs a forward and a backward pass for every line of input and answers with its seconds, and in the
// end it writes another JSON object.
#include <torch/torch.h>

#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "snug/base/clock.h"
#include "snug/memory/device_memory.h"
#include "snug/models/autocast.h"
#include "snug/models/gpt.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/run/presets.h"
#include "snug/replay/session.h"

namespace {

struct Steps {
  std::optional<snug::Session> session;
  nlohmann::ordered_json made;
};

/// The session for a budget, and what it predicts; without a session when nothing fits.
Steps planned(const std::function<at::Tensor()>& forward, snug::Bytes above, snug::memory::DeviceMemory& memory) {
  Steps steps;
  const snug::replay::RecordedStep step = snug::replay::record_step(forward, memory);
  const snug::Bytes before = step.graph.static_bytes;
  snug::plan::Planner planner(step.graph, "optimal");
  steps.made = {{"floor_bytes", planner.floor(step.graph) - before},
                {"unplanned_peak_bytes", snug::plan::plan_none(step.graph).predicted_peak - before},
                {"unplanned_seconds", step.graph.step_seconds}};
  try {
    steps.session.emplace(step, planner, snug::plan::Budget{before + above}, memory);
    steps.made["predicted_peak_bytes"] = steps.session->plan().predicted_peak - before;
    steps.made["predicted_seconds"] = steps.session->plan().predicted_seconds;
  } catch (const snug::DoesNotFit&) {
    steps.made["fits"] = false;
  }
  return steps;
}

}  // namespace

int main(int argc, char** argv) {
  const bool bf16 = argc > 1 && std::string(argv[1]) == "bf16";
  auto& memory = snug::memory::device_memory(c10::kCPU);
  at::set_num_threads(2);
  torch::manual_seed(0);
  snug::models::GptOptions options{.blocks = 12, .width = 384, .heads = 6, .sequence = 256, .vocabulary = 8192};
  if (argc > 3) {
    options.loss = snug::models::TiledLoss{.logits = std::stoll(argv[3])};
  }
  snug::models::Gpt model(options);
  if (argc > 3) model->attend_by(snug::models::AttentionMethod::Products);
  const at::Tensor tokens = torch::randint(0, 8192, {8, 256}), targets = torch::randint(0, 8192, {8, 256});
  const auto forward = [&] {
    const snug::models::AutocastScope autocast(bf16 ? std::optional(at::kBFloat16) : std::nullopt, c10::kCPU);
    return model->loss(tokens, targets);
  };

  Steps steps;
  if (const snug::Bytes above = argc > 2 ? std::stoll(argv[2]) : 0; above > 0) {
    forward().backward();  // what LibTorch loads on first use is no part of the recorded seconds
    model->zero_grad();
    steps = planned(forward, above, memory);
  }
  std::cout << steps.made << std::endl;
  if (steps.made.contains("fits")) return 0;

  const snug::Bytes before = memory.stats().allocated;
  memory.reset_peak();
  double loss = 0;
  for (std::string line; std::getline(std::cin, line);) {
    model->zero_grad();
    const double started = snug::monotonic_seconds();
    at::Tensor result;
    if (steps.session) {
      result = steps.session->backward(forward);
    } else {
      result = forward();
      result.backward();
    }
    std::cout << snug::monotonic_seconds() - started << std::endl;
    loss = result.item<double>();
  }
  nlohmann::ordered_json end = {{"peak_bytes", memory.stats().allocated_peak - before}, {"loss", loss}};
  if (steps.session) end["replayed_ops"] = steps.session->last_step().replayed_ops;
  std::cout << end << std::endl;
}
