// A GPT, dropped and replayed in every way there is: gradients bitwise those of plain LibTorch.
#include <gtest/gtest.h>

#include "snug/models/autocast.h"
#include "snug/models/gpt.h"
#include "snug/plan/run/simulator.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace snug {
namespace {

using testing::expect_same;
using testing::StepUnderTest;

struct GptCase {
  double dropout;
  bool bf16;
};

class GptEquivalence : public ::testing::TestWithParam<GptCase> {
 protected:
  GptEquivalence() {
    torch::manual_seed(1);
    // Smaller in bf16, for which processors without it take many times as long.
    model = models::Gpt(models::GptOptions{.blocks = GetParam().bf16 ? 4 : 6,
                                           .width = GetParam().bf16 ? 64 : 128,
                                           .heads = 4,
                                           .sequence = 64,
                                           .vocabulary = 256,
                                           .dropout = GetParam().dropout});
    tokens = torch::randint(0, 256, {8, 64});
    targets = torch::randint(0, 256, {8, 64});
  }
  at::Tensor forward() {
    const models::AutocastScope autocast(GetParam().bf16 ? std::optional(at::kBFloat16) : std::nullopt,
                                         testing::test_device().type());
    return model->loss(tokens, targets);
  }
  models::Gpt model{nullptr};
  at::Tensor tokens, targets;
};

TEST_P(GptEquivalence, EverythingRecomputedInOneRegion) {
  StepUnderTest test({model.ptr()});
  const auto plain = test.run([&] {
    const auto loss = forward();
    loss.backward();
    return loss;
  });
  const auto dropped = test.run([&] {
    at::Tensor loss;
    {
      const Region region(Recompute{});
      loss = forward();
    }
    loss.backward();
    return loss;
  });
  expect_same(plain, dropped);
}

TEST_P(GptEquivalence, EveryStrategyOfASession) {
  StepUnderTest test({model.ptr()});
  const auto plain = test.run([&] {
    const auto loss = forward();
    loss.backward();
    return loss;
  });
  for (const std::string strategy :
       {"none", "every_block", "chen_sqrt", "revolve(2)", "sequential(2)", "selective(aten::addmm)", "full_uniform(2)",
        "full_block(1)", "core_attention", "eviction", "optimal"}) {
    SCOPED_TRACE(strategy);
    auto& memory = testing::test_memory();
    Session session(replay::record_step([&] { return forward(); }, memory), strategy, std::nullopt, memory);
    const auto planned = test.run([&] { return session.backward([&] { return forward(); }); });
    expect_same(plain, planned);
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    const std::int64_t replayed = plan::simulate(session.graph(), session.plan()).replayed_ops;
    EXPECT_EQ(session.last_step().replayed_ops, replayed);
    EXPECT_EQ(replayed == 0, strategy == "none" || strategy == "optimal" || strategy == "eviction");
  }
}

TEST_P(GptEquivalence, UnderShrinkingBudgets) {
  auto& memory = testing::test_memory();
  StepUnderTest test({model.ptr()});
  const auto plain = test.run([&] {
    const auto loss = forward();
    loss.backward();
    return loss;
  });
  model->zero_grad();
  const auto recorded = replay::record_step([&] { return forward(); }, memory);
  const Bytes peak = plan::make_plan(recorded.graph, "none", std::nullopt).predicted_peak;
  for (const double fraction : {0.9, 0.8, 0.75, 0.7}) {
    const Bytes budget = static_cast<Bytes>(fraction * static_cast<double>(peak));
    SCOPED_TRACE(budget);
    const auto planned = test.run([&] {
      auto session = fit([&](int) { return forward(); }, 0, {.budget = budget, .device = testing::test_device()});
      memory.reset_peak();
      const at::Tensor loss = session.backward([&] { return forward(); });
      EXPECT_LE(memory.stats().mapped_peak, budget);
      EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
      EXPECT_GT(session.last_step().replayed_ops, 0);
      EXPECT_LE(memory.stats().allocated_peak, session.plan().predicted_peak);
      EXPECT_GE(static_cast<double>(memory.stats().allocated_peak),
                0.995 * static_cast<double>(session.plan().predicted_peak));
      return loss;
    });
    expect_same(plain, planned);
  }
}

TEST_P(GptEquivalence, ThePredictedPeakIsTheMeasuredOne) {
  auto& memory = testing::test_memory();
  model->zero_grad();
  const auto recorded = replay::record_step([&] { return forward(); }, memory);
  const Bytes peak = plan::make_plan(recorded.graph, "none", std::nullopt).predicted_peak;
  for (const double fraction : {1.0, 0.9, 0.8, 0.7, 0.65}) {
    Session session(recorded, "optimal", plan::Budget{static_cast<Bytes>(fraction * static_cast<double>(peak)), 0},
                    memory);
    memory.set_limit(std::nullopt);  // the plan alone, without the net under it
    memory.reset_peak();
    session.backward([&] { return forward(); });
    EXPECT_LE(memory.stats().allocated_peak, session.plan().predicted_peak) << "at " << fraction;
    // Predicted is that the scratch memory of kernels is there on all threads at once, which it may be or not.
    EXPECT_GE(memory.stats().allocated_peak, session.plan().predicted_peak - 2_KiB) << "at " << fraction;
    EXPECT_EQ(session.last_step().replayed_ops, plan::simulate(session.graph(), session.plan()).replayed_ops);
    model->zero_grad();
  }
}

TEST_P(GptEquivalence, MemoryIsAsBeforeWhenTheStepIsOver) {
  auto& memory = testing::test_memory();
  model->zero_grad();
  Session session(replay::record_step([&] { return forward(); }, memory), "every_block", std::nullopt, memory);
  const Bytes before = memory.stats().allocated;
  session.backward([&] { return forward(); });
  model->zero_grad();
  EXPECT_EQ(memory.stats().allocated, before);
}

INSTANTIATE_TEST_SUITE_P(Precision, GptEquivalence,
                         ::testing::Values(GptCase{0.0, false}, GptCase{0.1, false}, GptCase{0.0, true},
                                           GptCase{0.1, true}),
                         [](const auto& test_case) {
                           return std::string(test_case.param.bf16 ? "Bf16" : "Fp32") +
                                  (test_case.param.dropout > 0 ? "Dropout" : "");
                         });

}  // namespace
}  // namespace snug
