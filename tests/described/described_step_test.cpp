// Steps of models on a device that is not here, recorded and planned.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "snug/described/described_device.h"
#include "snug/models/autocast.h"
#include "snug/models/gpt.h"
#include "snug/plan/run/presets.h"
#include "snug/record/recording.h"
#include "snug/record/tape.h"
#include "snug/snug.h"
#include "tests/device/simulated_device.h"

namespace snug::described {
namespace {

constexpr std::int64_t kSequence = 128, kRows = 8;

/// A GPT in mixed precision, with its batch.
class Step {
 public:
  explicit Step(c10::Device device)
      : device_(device),
        model_(models::GptOptions{.blocks = 4, .width = 128, .heads = 4, .sequence = kSequence, .vocabulary = 128}) {
    model_->to(device);
    tokens_ = at::ones({kRows, kSequence}, at::TensorOptions(device).dtype(at::kLong));
  }
  at::Tensor operator()() {
    const models::AutocastScope autocast(at::kBFloat16, device_.type());
    return model_->loss(tokens_, tokens_);
  }

  void forget_gradients() { model_->zero_grad(); }

 private:
  c10::Device device_;
  models::Gpt model_;
  at::Tensor tokens_;
};

plan::StepGraph graph_on(c10::Device device) {
  Step step(device);
  return replay::record_step([&] { return step(); }, memory::device_memory(device)).graph;
}

std::vector<std::string> names_of(const plan::StepGraph& graph) {
  std::vector<std::string> names;
  for (const plan::OpInfo& op : graph.ops) names.push_back(op.name);
  return names;
}

/// Of all that takes some, in order of size: which operand mixed precision casts first is the compiler's choice.
std::vector<Bytes> bytes_of(const plan::StepGraph& graph) {
  std::vector<Bytes> bytes;
  for (const plan::ValueInfo& value : graph.values) {
    if (value.bytes > 0) bytes.push_back(value.bytes);
  }
  std::ranges::sort(bytes);
  return bytes;
}

TEST(DescribedStep, HasTheOperatorsAndTheBytesOfOneOnADeviceThatIsThere) {
  if (!testing::can_simulate_devices()) GTEST_SKIP() << "this LibTorch takes no simulated device";
  testing::install_simulated_devices();
  const plan::StepGraph there = graph_on(c10::Device(testing::kSimulated, 0)),
                        described = graph_on(install(describe("t4")));
  EXPECT_EQ(names_of(described), names_of(there));
  EXPECT_EQ(bytes_of(described), bytes_of(there));
  EXPECT_EQ(described.static_bytes, there.static_bytes);
  EXPECT_EQ(plan::plan_none(described).predicted_peak, plan::plan_none(there).predicted_peak);
}

TEST(DescribedStep, RunsUnderItsPlanAsPredicted) {
  const c10::Device device = install(describe("t4"));
  memory::DeviceMemory& memory = memory::device_memory(device);
  Step step(device);
  const Bytes unplanned = plan::plan_none(replay::record_step([&] { return step(); }, memory).graph).predicted_peak;
  Session session = fit([&](int) { return step(); }, 0, {.budget = unplanned * 7 / 10, .device = device});
  for (int i = 0; i < 2; ++i) {
    memory.reset_peak();
    session.backward([&] { return step(); });
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    EXPECT_GT(session.last_step().replayed_ops, 0);
    EXPECT_EQ(memory.stats().allocated_peak, session.plan().predicted_peak);
    step.forget_gradients();
  }
}

TEST(DescribedStep, TakesTheSameTimeEveryTimeAndLessOnAFasterDevice) {
  const double slow = graph_on(install(describe("t4"))).step_seconds;
  EXPECT_NEAR(graph_on(install(describe("t4"))).step_seconds, slow, 1e-9);
  const auto seconds_of_product = [](const char* name) {
    const c10::Device device = install(describe(name));
    const at::Tensor weight = at::empty({4096, 4096}, at::TensorOptions(device).dtype(at::kBFloat16)).requires_grad_();
    const auto step = [&] { return at::mm(weight, weight).sum(); };
    return replay::record_step(step, memory::device_memory(device)).graph.step_seconds;
  };
  EXPECT_LT(10 * seconds_of_product("h100-sxm"), seconds_of_product("t4"));
}

/// What is evicted first while a step is recorded depends on it, and so which budgets are refused.
TEST(DescribedStep, OperatorsHaveTheSecondsOfItsClockForEvictions) {
  const c10::Device device = install(describe("t4"));
  const memory::DeviceMemory& memory = memory::device_memory(device);
  const at::Tensor weight = at::empty({4096, 4096}, at::TensorOptions(device).dtype(at::kBFloat16));
  const auto tape = std::make_shared<record::Tape>(record::KeepSaved{});
  tape->time_operators(memory);
  const double before = memory.own_seconds().value();
  {
    const record::Recording recording(tape);
    (void)at::mm(weight, weight);
  }
  ASSERT_EQ(tape->calls().size(), 1);
  EXPECT_GT(tape->calls().seconds(0), 2e-3);
  EXPECT_NEAR(tape->calls().seconds(0), memory.own_seconds().value() - before, 1e-6);
}

TEST(DescribedStep, OfManyGigabytesTakesNoMemoryHere) {
  const c10::Device device = install(describe("1PFLOPS/5TBps/400GiB"));
  const at::Tensor weight = at::empty({1 << 16, 1 << 16}, at::TensorOptions(device)).requires_grad_();
  const auto step = [&] { return at::mm(at::mm(weight, weight), weight).sum(); };
  const Bytes before = memory::device_memory(c10::Device(at::kCPU)).stats().allocated;
  const plan::StepGraph graph = replay::record_step(step, memory::device_memory(device)).graph;
  EXPECT_GE(plan::plan_none(graph).predicted_peak, 48_GiB);
  EXPECT_LT(memory::device_memory(c10::Device(at::kCPU)).stats().allocated, before + 1_MiB);
}

}  // namespace
}  // namespace snug::described
