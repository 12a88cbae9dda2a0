// The loss over a vocabulary, in tiles and plain: forward and backward in turns, what each takes beside x, the weight
// and their gradients, and the ratio of their seconds. A plain one keeps three times all logits, a tiled one a tile.
//
// Usage: loss_benchmark [ROUNDS] [fp32|bf16] [MIB of a tile]
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "snug/base/clock.h"
#include "snug/memory/device_memory.h"
#include "snug/models/autocast.h"
#include "snug/ops/linear_cross_entropy.h"

namespace {

using snug::Bytes;

constexpr std::int64_t kTokens = 2048, kWidth = 384;

struct Task {
  at::Tensor x, weight, targets;
};

template <class Loss>
double seconds_of(const Task& task, bool bf16, Bytes& most, const Loss& loss) {
  auto& memory = snug::memory::device_memory(c10::kCPU);
  task.x.mutable_grad() = task.weight.mutable_grad() = at::Tensor();
  memory.reset_peak();
  const Bytes before = memory.stats().allocated;
  const double started = snug::monotonic_seconds();
  {
    const snug::models::AutocastScope autocast(bf16 ? std::optional(at::kBFloat16) : std::nullopt, c10::kCPU);
    loss(task).backward();
  }
  const double seconds = snug::monotonic_seconds() - started;
  const Bytes gradients = static_cast<Bytes>(task.x.nbytes() + task.weight.nbytes());
  most = std::max(most, memory.stats().allocated_peak - before - gradients);
  return seconds;
}

double at_share(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

void measure(std::int64_t vocabulary, int rounds, bool bf16, snug::ops::LossTile tile) {
  torch::manual_seed(0);
  const Task task{torch::randn({kTokens, kWidth}).requires_grad_(),
                  (torch::randn({vocabulary, kWidth}) * 0.05).requires_grad_(),
                  torch::randint(vocabulary, {kTokens}, at::kLong)};
  const auto tiled = [&](const Task& t) {
    return snug::ops::linear_cross_entropy(t.x, t.weight, t.targets, {.tile = tile});
  };
  const auto plain = [](const Task& t) {
    return at::cross_entropy_loss(at::linear(t.x, t.weight).to(at::kFloat), t.targets);
  };
  Bytes tiled_bytes = 0, plain_bytes = 0;
  std::vector<double> ratios;
  for (int i = -1; i < rounds; ++i) {
    const double a = seconds_of(task, bf16, tiled_bytes, tiled), b = seconds_of(task, bf16, plain_bytes, plain);
    if (i >= 0) ratios.push_back(a / b);
  }
  fmt::print("| {} | {:.1f} | {:.1f} | x {:.3f} ({:.3f} to {:.3f}) |\n", vocabulary,
             static_cast<double>(tiled_bytes) / (1 << 20), static_cast<double>(plain_bytes) / (1 << 20),
             at_share(ratios, 0.5), at_share(ratios, 0.25), at_share(ratios, 0.75));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::stoi(argv[1]) : 7;
  const bool bf16 = argc > 2 && std::string(argv[2]) == "bf16";
  const snug::ops::LossTile tile =
      argc > 3 ? snug::ops::LossTile{Bytes{std::stoi(argv[3])} << 20} : snug::ops::LossTile();
  at::set_num_threads(2);
  fmt::print("{} tokens of width {}, {}, tiles of {} MiB\n\n", kTokens, kWidth, bf16 ? "bf16" : "fp32",
             tile.logits >> 20);
  fmt::print(
      "| vocabulary | tiled, MiB beside gradients | plain, MiB beside gradients | tiled / plain step "
      "|\n|---|---|---|---|\n");
  for (const std::int64_t vocabulary : {8192, 32768, 131072, 262144}) measure(vocabulary, rounds, bf16, tile);
  return 0;
}
