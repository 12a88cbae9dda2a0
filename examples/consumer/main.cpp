// One planned step of a small network through the installed library. Prints the loss and the predicted peak:
//   loss 1.0123
//   predicted peak 2.1 MiB of 64.0 MiB
#include <snug/snug.h>
#include <torch/torch.h>

#include <iostream>

struct Batch {
  torch::Tensor input;
  torch::Tensor target;
};

int main() {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(64, 256), torch::nn::ReLU(), torch::nn::Linear(256, 256),
                              torch::nn::ReLU(), torch::nn::Linear(256, 1));
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01));
  const Batch sample{torch::randn({128, 64}), torch::randn({128, 1})};

  const auto step = [&](const Batch& b) { return torch::mse_loss(model->forward(b.input), b.target); };
  const snug::Bytes budget = snug::parse_bytes("64MiB");
  auto session = snug::fit(step, sample, {.budget = budget, .optimizer = optimizer});

  const torch::Tensor loss = session.backward(step, sample);
  optimizer.step();

  std::cout << "loss " << loss.item<float>() << "\n"
            << "predicted peak " << snug::format_bytes(session.plan().predicted_peak) << " of "
            << snug::format_bytes(budget) << "\n";
}
