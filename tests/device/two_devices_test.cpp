// A model whose parts are on several devices, as people place them by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "snug/optim/adamw.h"
#include "snug/optim/clipping.h"
#include "snug/snug.h"
#include "tests/base/fault.h"
#include "tests/device/simulated_device.h"
#include "tests/equivalence/bitwise.h"

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

TEST(TwoDevices, GradientsAreClippedTogetherAndUpdatedWhereTheyAre) {
  const c10::Device cpu(c10::kCPU), first(kSimulated, 0), second(kSimulated, 1);
  const auto expected = trained_on({cpu, cpu, cpu}), on_one = trained_on({first, first, first});
  EXPECT_GT(expected[0].item<double>(), 0.5);  // so that it is clipped
  for (const auto& devices : {std::vector{cpu, first, second}, std::vector{second, first, second}}) {
    const auto found = trained_on(devices);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      // Elsewhere the norm of each tensor is LibTorch's, rounded to fp32, and here blocks are added up exactly.
      EXPECT_TRUE(at::allclose(found[i], expected[i], /*rtol=*/0x1p-22, /*atol=*/0x1p-22)) << i;
      EXPECT_TRUE(devices.front().is_cpu() || at::equal(found[i], on_one[i])) << i << ": as on one device";
    }
  }
}

/// Eight layers on each of two devices, one behind the other.
struct Halves {
  explicit Halves(const std::vector<c10::Device>& on) {
    torch::manual_seed(6);
    for (const c10::Device device : on) {
      for (int i = 0; i < 8; ++i) weights.push_back(torch::randn({64, 64}).div(8).to(device).detach().requires_grad_());
    }
  }
  at::Tensor operator()(const at::Tensor& x) const {
    at::Tensor y = x;
    for (const at::Tensor& w : weights) y = at::gelu(y.to(w.device()).matmul(w)).tanh();
    return y.square().mean();
  }
  /// Those of one step, on the CPU.
  std::vector<at::Tensor> take_gradients() const {
    std::vector<at::Tensor> all;
    for (at::Tensor w : weights) {
      all.push_back(w.grad().cpu());
      w.mutable_grad() = at::Tensor();
    }
    return all;
  }
  std::vector<at::Tensor> weights;
};

/// What a plain step takes of the device.
Bytes taken_by(const Halves& model, const at::Tensor& x, c10::Device device) {
  memory::DeviceMemory& memory = memory::device_memory(device);
  memory.reset_peak();
  const Bytes before = memory.stats().allocated;
  model(x).backward();
  (void)model.take_gradients();
  return memory.stats().allocated_peak - before;
}

TEST(OtherBudgets, OperatorsAreTimedByTheClockOfTheirDevice) {
  const c10::Device first(kSimulated, 0), second(kSimulated, 1);
  const SimulatedSpeed before = simulated_speed();
  SimulatedSpeed speed = before;
  speed.kernel_seconds = 0.5;  // of the simulated clock
  set_simulated_speed(speed);
  const Halves model({first, second});
  const at::Tensor x = torch::randn({64, 64}).to(first);
  const auto recorded =
      replay::record_step([&] { return model(x); }, memory::device_memory(first), {.other_budgets = {{second, 1_GiB}}});
  set_simulated_speed(before);
  int timed[] = {0, 0}, copies = 0;
  for (plan::OpId op = 0; op < static_cast<plan::OpId>(recorded.graph.ops.size()); ++op) {
    const plan::OpInfo& info = recorded.graph.ops[static_cast<std::size_t>(op)];
    if (info.name == "aten::_to_copy") {  // which waits for what the first has still to do
      EXPECT_LT(info.seconds, 0.1);
      ++copies;
    }
    if (info.name != "aten::gelu" && info.name != "aten::tanh") continue;
    EXPECT_NEAR(info.seconds, 0.5, 1e-6) << info.name;
    ++timed[recorded.graph.values[static_cast<std::size_t>(recorded.graph.flow.outputs(op).front().value)].device];
  }
  EXPECT_EQ(timed[0], 16);
  EXPECT_EQ(timed[1], 16);
  EXPECT_EQ(copies, 1);
  // Forward and backward of both; the graph's clock is the first one's, which does not wait for the second's end.
  EXPECT_GT(recorded.graph.step_seconds, 0.5 * 3 * 32);
}

TEST(OtherBudgets, HoldOnEachDeviceWithTheBitsOfThePlainStep) {
  const c10::Device cpu(c10::kCPU), first(kSimulated, 0), second(kSimulated, 1);
  for (const auto& [own, other] : {std::pair{first, second}, {first, cpu}, {second, first}}) {
    SCOPED_TRACE(own.str() + ", " + other.str());
    const Halves model({own, other});
    const at::Tensor x = torch::randn({1024, 64}).to(own);
    model(x).backward();
    const auto expected = model.take_gradients();
    memory::DeviceMemory &here = memory::device_memory(own), &there = memory::device_memory(other);
    const Bytes before = there.stats().allocated, added = taken_by(model, x, other);
    const Bytes budget = before + added * 6 / 10 + 2_MiB;
    ASSERT_LT(budget, before + added) << "it takes more without one";
    // One that is no limit, and one that needs a plan.
    for (const Bytes own_added : {64_MiB, taken_by(model, x, own) * 8 / 10 + 2_MiB}) {
      SCOPED_TRACE(own_added);
      const Bytes own_budget = here.stats().allocated + own_added;
      Session session = fit(model, x, {.budget = own_budget, .device = own, .other_budgets = {{other, budget}}});
      EXPECT_EQ(there.stats().limit, budget);
      for (int step = 0; step < 3; ++step) {
        here.reset_peak();
        there.reset_peak();
        session.backward(model, x);
        expect_same(expected, model.take_gradients());
        EXPECT_LE(here.stats().allocated_peak, own_budget);
        EXPECT_LE(there.stats().allocated_peak, budget);
        EXPECT_EQ(session.last_step().evictions, 0) << "the plan is enough";
        EXPECT_EQ(session.last_step().divergence, "");
        EXPECT_GT(session.last_step().replayed_ops, 0);
        ASSERT_EQ(session.plan().others.size(), 1U);
        const plan::PlannedPart& part = session.plan().others[0];
        EXPECT_EQ(part.device, other.str());
        EXPECT_EQ(part.budget, budget);
        EXPECT_LE(there.stats().allocated_peak, part.predicted_peak);
        EXPECT_LE(part.predicted_peak, there.stats().allocated_peak * 1005 / 1000);
        EXPECT_LE(here.stats().allocated_peak, session.plan().predicted_peak);
        EXPECT_LE(session.plan().predicted_peak, here.stats().allocated_peak * 1005 / 1000);
      }
      const auto too_small = [&] {
        (void)fit(model, x, {.budget = own_budget, .device = own, .other_budgets = {{other, before + 64_KiB}}});
      };
      EXPECT_THAT(too_small,
                  ::testing::ThrowsMessage<DoesNotFit>(::testing::HasSubstr("the budget of " + other.str() + " is ")));
      there.reset_peak();
      session.backward(model, x);
      expect_same(expected, model.take_gradients());
      EXPECT_LE(there.stats().allocated_peak, budget);
    }
    EXPECT_EQ(there.stats().limit, std::nullopt);
  }
}

/// Replicas of a model, on a device each, in turns.
TEST(OtherBudgets, StepsThatDifferInTheirDevicesAloneHavePlansOfTheirOwn) {
  const c10::Device first(kSimulated, 0), second(kSimulated, 1);
  const Halves replicas[] = {Halves({first}), Halves({second})};
  const auto step = [&](const at::Tensor& x) { return replicas[x.device().index()](x); };
  const at::Tensor x = torch::randn({256, 64});
  const at::Tensor batches[] = {x.to(first), x.to(second)};
  const Bytes budget =
      memory::device_memory(first).stats().allocated + taken_by(replicas[0], batches[0], first) + 2_MiB;
  Session session =
      fit([&](const at::Tensor& batch) { return step(batch) + 0 * replicas[1].weights[0].sum().to(batch.device()); },
          batches[0], {.budget = budget, .device = first, .other_budgets = {{second, 64_MiB}}});
  for (int i = 0; i < 8; ++i) {
    session.backward(step, batches[i % 2]);
    if (i < 6) continue;  // three of each: one comes unexpectedly, and one is planned as it comes again
    EXPECT_TRUE(session.last_step().followed_plan) << i;
    const plan::StepGraph& graph = session.graph();
    EXPECT_EQ(graph.devices[static_cast<std::size_t>(
                  graph.values[static_cast<std::size_t>(graph.flow.outputs(0).front().value)].device)],
              batches[i % 2].device().str());
  }
}

TEST(OtherBudgets, AreOfDevicesThatHaveNoneYet) {
  const c10::Device first(kSimulated, 0), second(kSimulated, 1);
  const Halves model({first, second});
  const at::Tensor x = torch::randn({16, 64}).to(first);
  const auto fitted = [&](std::vector<DeviceBudget> others) {
    return fault([&] { (void)fit(model, x, {.budget = 1_GiB, .device = first, .other_budgets = std::move(others)}); });
  };
  EXPECT_THAT(fitted({{first, 1_GiB}}), ::testing::HasSubstr(first.str() + " has two budgets"));
  EXPECT_THAT(fitted({{second, 1_GiB}, {second, 2_GiB}}), ::testing::HasSubstr(second.str() + " has two budgets"));
  EXPECT_THAT(fitted({{second, 0}}), ::testing::HasSubstr("must be positive"));
  EXPECT_THAT(fitted({{c10::Device(c10::kXLA, 0), 1_GiB}}), ::testing::HasSubstr("no backend for xla:0"));
}

}  // namespace
}  // namespace snug::testing
