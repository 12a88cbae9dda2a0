// Runs one plain step of gpt-12x384 (forward and backward, no session) for every line on standard input and answers
// with its seconds and loss. The other half of against_python.py.
#include <torch/torch.h>

#include <iostream>
#include <string>

#include "snug/base/clock.h"
#include "snug/memory/device_memory.h"
#include "snug/models/autocast.h"
#include "snug/models/gpt.h"

int main(int argc, char** argv) {
  const bool bf16 = argc > 1 && std::string(argv[1]) == "bf16";
  snug::memory::device_memory(c10::kCPU);
  at::set_num_threads(2);
  torch::manual_seed(0);
  snug::models::Gpt model(
      snug::models::GptOptions{.blocks = 12, .width = 384, .heads = 6, .sequence = 256, .vocabulary = 8192});
  const at::Tensor tokens = torch::randint(0, 8192, {8, 256}), targets = torch::randint(0, 8192, {8, 256});
  for (std::string line; std::getline(std::cin, line);) {
    model->zero_grad();
    const double started = snug::monotonic_seconds();
    at::Tensor loss;
    {
      const snug::models::AutocastScope autocast(bf16 ? std::optional(at::kBFloat16) : std::nullopt);
      loss = model->loss(tokens, targets);
    }
    loss.backward();
    std::cout << snug::monotonic_seconds() - started << ' ' << loss.item<double>() << std::endl;
  }
}
