// A model whose parts are on several devices, as people place them by hand.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "snug/optim/adamw.h"
#include "snug/optim/clipping.h"
#include "tests/device/simulated_device.h"

namespace snug::testing {
namespace {

[[maybe_unused]] const bool kTwoInstalled = (install_simulated_devices(), true);

/// Three layers, their gradients clipped together, and two updates: the norms, and the weights after them.
std::vector<at::Tensor> trained_on(const std::vector<c10::Device>& devices) {
  torch::manual_seed(4);
  std::vector<at::Tensor> weights;
  for (const c10::Device device : devices) weights.push_back(torch::randn({16, 16}).to(device).requires_grad_());
  const at::Tensor x = torch::randn({8, 16});
  optim::AdamW optimizer(weights, {.weight_decay = 0.1});
  std::vector<at::Tensor> found;
  for (int step = 0; step < 2; ++step) {
    at::Tensor y = x;
    for (const at::Tensor& w : weights) y = y.to(w.device()).matmul(w).tanh();
    optimizer.zero_grad();
    y.square().sum().backward();
    found.push_back(torch::tensor(optim::clip_gradients(weights, optim::ClipNorm{.limit = 0.5}), at::kDouble));
    optimizer.step(1e-2);
  }
  for (const at::Tensor& w : weights) found.push_back(w.detach().cpu());
  return found;
}

TEST(TwoDevices, GradientsAreClippedTogetherAndUpdatedWhereTheyAreWithTheBitsOfTheCpu) {
  const c10::Device cpu(c10::kCPU), first(kSimulated, 0), second(kSimulated, 1);
  const auto expected = trained_on({cpu, cpu, cpu});
  EXPECT_GT(expected[0].item<double>(), 0.5);  // so that it is clipped
  for (const auto& devices : {std::vector{cpu, first, second}, std::vector{second, first, second}}) {
    const auto found = trained_on(devices);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
  }
}

}  // namespace
}  // namespace snug::testing
