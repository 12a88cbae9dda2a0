// Masks and indices in fewer bytes, on any device: peaks to the byte, the plain bits, and what does not fit is kept.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "snug/plan/run/simulator.h"
#include "snug/plan/step/legal_actions.h"
#include "snug/snug.h"
#include "tests/device/test_device.h"
#include "tests/equivalence/bitwise.h"
#include "tests/replay/compressing_plan.h"

namespace snug {
namespace {

using testing::expect_same;
using testing::test_memory;

/// What this codec suits is compressed, and the rest kept.
plan::MemoryPlan compressing_by(plan::Codec codec, const plan::StepGraph& graph) {
  return testing::compressing(graph, [&](plan::Action action) { return action.codec == codec; });
}

at::Tensor random_numbers(at::IntArrayRef sizes) {
  torch::manual_seed(21);
  return torch::randn(sizes).to(testing::test_device());
}

TEST(CompressMasks, OfDropoutTakeABitOfEachByte) {
  const at::Tensor x = random_numbers({512, 1024}), w = random_numbers({1, 1024}).requires_grad_();
  const auto loss = [&] {
    at::Tensor h = x * w;
    for (int i = 0; i < 6; ++i) h = std::get<0>(at::native_dropout(h, 0.25, true)) * 1.01;
    return h.sum();  // backward asks for nothing but masks
  };
  const auto run = [&](const auto& step) {
    torch::manual_seed(5);
    w.mutable_grad() = at::Tensor();
    step();
    return w.grad().clone();
  };
  const at::Tensor expected = run([&] { loss().backward(); });
  w.mutable_grad() = at::Tensor();
  const replay::RecordedStep step = replay::record_step(loss, test_memory());
  const plan::MemoryPlan kept = plan::make_plan(step.graph, "none", std::nullopt),
                         plan = compressing_by(plan::Codec::Bits, step.graph);
  std::int64_t masks = 0;
  for (plan::ValueId v = 0; v < step.graph.flow.values(); ++v) {
    if (plan.action(v).codec != plan::Codec::Bits) continue;
    ++masks;
    EXPECT_EQ(plan::bytes_held(step.graph, v, plan.action(v)), test_memory().rounded(x.numel() / 8));
  }
  EXPECT_EQ(masks, 6);
  EXPECT_LT(plan.predicted_peak, kept.predicted_peak - 2 * x.numel());
  Session session(step, plan::Planner(step.graph, plan), std::nullopt, test_memory());
  for (int i = 0; i < 3; ++i) {
    const at::Tensor found = run([&] {
      test_memory().reset_peak();
      session.backward(loss);
      EXPECT_EQ(test_memory().stats().allocated_peak, plan.predicted_peak);
    });
    expect_same({expected}, {found});
    EXPECT_EQ(session.last_step().compressed_bytes, 6 * x.numel());
    EXPECT_EQ(session.last_step().replayed_ops, 0);
    EXPECT_TRUE(session.last_step().followed_plan);
  }
}

TEST(CompressMasks, OfIndicesAreKeptWhereTheyAreTooLargeForTheBytesOfThePlan) {
  const at::Tensor x = random_numbers({128, 1024}), w = random_numbers({1, 1024}).requires_grad_();
  std::int64_t columns = 100;
  const auto loss = [&] {
    const at::Tensor indices = (x * 1000).to(at::kLong).abs().remainder(columns);
    return (x * w).gather(1, indices).square().sum();
  };
  const auto plain = [&] {
    w.mutable_grad() = at::Tensor();
    loss().backward();
    return w.grad().clone();
  };
  plain();
  const replay::RecordedStep step = replay::record_step(loss, test_memory());
  const plan::MemoryPlan plan = compressing_by(plan::Codec::Narrow, step.graph);
  EXPECT_EQ(std::ranges::count(plan.actions, plan::compressed(plan::Codec::Narrow)), 1);
  Session session(step, plan::Planner(step.graph, plan), std::nullopt, test_memory());
  for (const std::int64_t now : {100, 1000, 128, 129, 100}) {
    columns = now;
    const at::Tensor expected = plain();
    w.mutable_grad() = at::Tensor();
    session.backward(loss);
    expect_same({expected}, {w.grad()});
    EXPECT_EQ(session.last_step().compressed_bytes, now <= 128 ? x.numel() * 8 : 0) << now;
    EXPECT_TRUE(session.last_step().followed_plan);
  }
}

}  // namespace
}  // namespace snug
