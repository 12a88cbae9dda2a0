// An accelerator's memory that runs out at each allocation of a planned step: the step is right, or refused, and the
// next one is right.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "snug/memory/out_of_budget.h"
#include "snug/snug.h"
#include "tests/device/simulated_device.h"
#include "tests/device/test_device.h"
#include "tests/equivalence/bitwise.h"

namespace snug::testing {
namespace {

[[maybe_unused]] const bool kInstalledForFaults = (install_simulated_devices(), true);
const c10::Device kDevice(kSimulated, 1);

/// Layers with dropout, whose plan has to run some of them again.
struct Layers : torch::nn::Module {
  Layers() {
    for (int i = 0; i < 4; ++i) layers->push_back(torch::nn::Linear(64, 64));
    register_module("layers", layers);
    to(kDevice);
  }
  at::Tensor loss(at::Tensor x) {
    for (const auto& layer : *layers) x = torch::dropout(layer->as<torch::nn::Linear>()->forward(x).tanh(), 0.2, true);
    return x.square().mean();
  }
  torch::nn::ModuleList layers;
};

class Faults : public ::testing::Test {
 protected:
  Faults() {
    torch::manual_seed(3);
    net_ = std::make_shared<Layers>();
    x_ = torch::randn({256, 64}).to(kDevice);
    expected_ = step([&] {
      const at::Tensor loss = net_->loss(x_);
      loss.backward();
      return loss;
    });
    const Bytes before = memory_.stats().allocated;
    const auto recorded = replay::record_step([&] { return net_->loss(x_); }, memory_);
    const Bytes peak = plan::make_plan(recorded.graph, "none", std::nullopt).predicted_peak;
    session_.emplace(
        fit([&](const at::Tensor& x) { return net_->loss(x); }, x_, {.budget = before + (peak - before) * 7 / 10}));
    (void)planned();
    const std::int64_t taken = simulated_supply(1).taken();
    (void)planned();
    in_a_step_ = simulated_supply(1).taken() - taken;
    base_ = settled(memory_);
  }
  ~Faults() override { simulated_supply(1).fail(std::nullopt); }

  /// The loss and all gradients of a step from a seed, which leaves no gradient.
  std::vector<at::Tensor> step(const std::function<at::Tensor()>& run) {
    torch::manual_seed(5);
    net_->zero_grad();
    std::vector<at::Tensor> found{run().detach().cpu()};
    for (const at::Tensor& p : net_->parameters()) found.push_back(p.grad().cpu());
    net_->zero_grad();
    return found;
  }
  std::vector<at::Tensor> planned() {
    return step([&] { return session_->backward([&] { return net_->loss(x_); }); });
  }

  memory::DeviceMemory& memory_ = memory::device_memory(kDevice);
  std::shared_ptr<Layers> net_;
  at::Tensor x_;
  std::vector<at::Tensor> expected_;
  std::optional<Session> session_;
  std::int64_t in_a_step_ = 0;
  Bytes base_ = 0;
};

TEST_F(Faults, AnAllocationThatFailsOnceIsTriedAgain) {
  ASSERT_GT(in_a_step_, 50);
  for (std::int64_t n = 0; n < in_a_step_; ++n) {
    SCOPED_TRACE(n);
    simulated_supply(1).fail(SimulatedSupply::Failure{.after = n, .for_good = false});
    expect_same(expected_, planned());
    EXPECT_EQ(settled(memory_), base_);
  }
}

TEST_F(Faults, ADeviceThatIsFullFromAnyAllocationOnRefusesTheStepAndRunsTheNext) {
  int refused = 0;
  for (std::int64_t n = 0; n < in_a_step_; ++n) {
    SCOPED_TRACE(n);
    simulated_supply(1).fail(SimulatedSupply::Failure{.after = n, .for_good = true});
    try {
      (void)planned();
    } catch (const std::exception& error) {
      ++refused;
      EXPECT_TRUE(memory::refusal_in(std::current_exception())) << error.what();
    }
    simulated_supply(1).fail(std::nullopt);
    net_->zero_grad();
    EXPECT_EQ(settled(memory_), base_);
    expect_same(expected_, planned());
  }
  EXPECT_GT(refused, in_a_step_ / 2);
}

}  // namespace
}  // namespace snug::testing
