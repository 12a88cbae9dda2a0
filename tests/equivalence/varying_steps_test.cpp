// Steps that are not always the same: other shapes, other branches, several models in turns, accumulated gradients.
// Each is bitwise that of plain LibTorch, under the cap, and gets a plan of its own.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"
#include "tests/equivalence/nets.h"

namespace snug {
namespace {

using testing::expect_same;
using testing::StepUnderTest;
using testing::test_memory;

Bytes unplanned_peak(const std::function<at::Tensor()>& step) {
  return plan::plan_none(replay::record_step(step, test_memory()).graph).predicted_peak;
}

/// Runs `step` plain and in the session, and compares.
void expect_equal_step(StepUnderTest& test, Session& session, Bytes budget, const std::function<at::Tensor()>& step) {
  test_memory().set_limit(std::nullopt);
  const auto plain = test.run_plain(step);
  const auto planned = test.run([&] {
    test_memory().release_cached();
    test_memory().set_limit(budget);
    test_memory().reset_peak();
    const at::Tensor loss = session.backward(step);
    session.finish_searches();
    EXPECT_LE(test_memory().stats().mapped_peak, budget);
    test_memory().set_limit(std::nullopt);
    return loss;
  });
  expect_same(plain, planned);
}

TEST(VaryingSteps, RandomSequenceLengthsGetPlansOfTheirOwn) {
  torch::manual_seed(5);
  models::Gpt model(
      models::GptOptions{.blocks = 4, .width = 96, .heads = 4, .sequence = 96, .vocabulary = 128, .dropout = 0.1});
  const auto step_of = [&](std::int64_t length) -> std::function<at::Tensor()> {
    const at::Tensor tokens = torch::arange(8 * length).view({8, length}).remainder(128);
    return [=]() mutable { return model->loss(tokens, tokens); };
  };
  const Bytes budget = unplanned_peak(step_of(96)) * 6 / 10;
  StepUnderTest test({model.ptr()});
  std::optional<Session> session(
      fit([&](int) { return step_of(96)(); }, 0, {.budget = budget, .device = testing::test_device()}));
  std::mt19937_64 engine(1);
  std::map<std::int64_t, int> seen;
  int planned_anew = 0, followed = 0, differed = 0;
  for (int i = 0; i < 40; ++i) {
    const std::int64_t length = 40 + 8 * static_cast<std::int64_t>(engine() % 8);
    SCOPED_TRACE(::testing::Message() << "step " << i << ", length " << length);
    expect_equal_step(test, *session, budget, step_of(length));
    const Session::StepReport& report = session->last_step();
    planned_anew += report.planned_anew;
    followed += report.followed_plan;
    differed += !report.followed_plan;
    EXPECT_EQ(report.followed_plan, report.divergence.empty());
    // A length is planned when it comes the second time, and its plan is followed from the third.
    EXPECT_EQ(report.planned_anew, seen[length] == 1);
    if (seen[length]++ > 1) {
      EXPECT_TRUE(report.followed_plan) << report.divergence;
    }
    if (report.followed_plan) {
      EXPECT_EQ(report.evictions, 0);
      EXPECT_EQ(report.replayed_ops, plan::simulate(session->graph(), session->plan()).replayed_ops);
    }
  }
  EXPECT_EQ(session->last_step().known, static_cast<std::size_t>(planned_anew) + 1);
  EXPECT_GE(followed, 40 - 2 * static_cast<int>(seen.size()));
  EXPECT_LE(differed, 2 * static_cast<int>(seen.size()));
}

TEST(VaryingSteps, ThePlanOfAStepThatWasRecordedAsItRanIsRight) {
  torch::manual_seed(5);
  // The same model at two sizes.
  testing::UNet model(8);
  const auto step_of = [&](std::int64_t side) -> std::function<at::Tensor()> {
    const at::Tensor images = torch::ones({2, 3, side, side}), labels = torch::zeros({2, side, side}, at::kLong);
    return [=]() mutable { return model->loss(images, labels); };
  };
  const auto first = step_of(40), second = step_of(48);
  model->zero_grad();
  const auto alone = replay::record_step(second, test_memory()).graph;
  const Bytes budget = plan::plan_none(alone).predicted_peak * 3 / 4;
  auto session = fit([&](int) { return first(); }, 0, {.budget = budget, .device = testing::test_device()});
  for (int i = 0; i < 2; ++i) {
    session.backward(second);
    model->zero_grad();
  }
  session.finish_searches();
  ASSERT_TRUE(session.last_step().planned_anew);
  const plan::StepGraph& graph = session.graph();
  ASSERT_EQ(graph.fingerprint(), alone.fingerprint());
  const auto peak_of = [](const plan::StepGraph& g, const plan::MemoryPlan& p) {
    return static_cast<double>(plan::simulate(g, p).peak - g.static_bytes);
  };
  for (const plan::MemoryPlan& plan :
       {plan::plan_none(alone), plan::make_plan(alone, "optimal", plan::Budget{budget, 0})}) {
    EXPECT_NEAR(peak_of(graph, plan), peak_of(alone, plan), 0.005 * peak_of(alone, plan));
  }
  // And it is the measured one.
  test_memory().reset_peak();
  session.backward(second);
  EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
  const auto predicted = static_cast<double>(session.plan().predicted_peak);
  EXPECT_NEAR(static_cast<double>(test_memory().stats().allocated_peak), predicted, 0.005 * predicted);
}

TEST(VaryingSteps, AnotherBranchEveryFewSteps) {
  torch::manual_seed(5);
  testing::ResNet model(12);
  const at::Tensor images = torch::randn({6, 3, 32, 32}), labels = torch::randint(0, 10, {6});
  // In some steps the blocks are run in another order from the middle on, with an extra operator.
  const auto step_of = [&](int branch) -> std::function<at::Tensor()> {
    return [=]() mutable {
      at::Tensor x = model->stem_norm(model->stem(images)).relu_();
      const std::size_t blocks = model->blocks->size();
      for (std::size_t i = 0; i < blocks; ++i) {
        if (branch == 1 && i == 3) x = x.tanh();
        if (branch == 2 && i == blocks - 1) x = x.sigmoid().mul(2);
        x = model->blocks[i]->as<testing::ResidualBlock>()->forward(x);
      }
      return torch::cross_entropy_loss(model->head(x.mean({2, 3})), labels);
    };
  };
  const Bytes budget = unplanned_peak(step_of(1)) * 3 / 4;
  StepUnderTest test({model.ptr()});
  auto session = fit([&](int) { return step_of(0)(); }, 0, {.budget = budget, .device = testing::test_device()});
  for (int i = 0; i < 24; ++i) {
    const int branch = i % 3 == 2 ? 1 + (i / 3) % 2 : 0;
    SCOPED_TRACE(::testing::Message() << "step " << i << ", branch " << branch);
    expect_equal_step(test, session, budget, step_of(branch));
    const Session::StepReport& report = session.last_step();
    if (i >= 12) {  // each branch has come twice
      EXPECT_TRUE(report.followed_plan) << report.divergence;
    }
    if (!report.followed_plan && branch == 1) {
      // Found at the operator where the branch leaves, not at its end.
      EXPECT_NE(report.divergence.find("ran aten::tanh"), std::string::npos) << report.divergence;
    }
  }
  EXPECT_EQ(session.last_step().known, 3U);
}

TEST(VaryingSteps, TwoModelsInTurnsAsGansHaveThem) {
  torch::manual_seed(5);
  namespace nn = torch::nn;
  nn::Sequential generator(nn::Linear(16, 256), nn::ReLU(), nn::Linear(256, 256), nn::ReLU(), nn::Linear(256, 64));
  nn::Sequential critic(nn::Linear(64, 256), nn::GELU(), nn::Linear(256, 256), nn::GELU(), nn::Linear(256, 1));
  const at::Tensor noise = torch::randn({512, 16}), real = torch::randn({512, 64});
  const std::function<at::Tensor()> critic_step = [&] {
    at::Tensor fake;
    {
      const torch::NoGradGuard no_grad;
      fake = generator->forward(noise);
    }
    return critic->forward(fake).mean() - critic->forward(real).mean();
  };
  const std::function<at::Tensor()> generator_step = [&] { return -critic->forward(generator->forward(noise)).mean(); };
  const Bytes budget = unplanned_peak(critic_step) * 85 / 100;
  StepUnderTest test({generator.ptr(), critic.ptr()});
  auto session = fit([&](int) { return critic_step(); }, 0, {.budget = budget, .device = testing::test_device()});
  for (int i = 0; i < 8; ++i) {
    SCOPED_TRACE(i);
    expect_equal_step(test, session, budget, i % 2 == 0 ? critic_step : generator_step);
    EXPECT_EQ(session.last_step().followed_plan, i % 2 == 0 || i > 3) << session.last_step().divergence;
  }
  EXPECT_EQ(session.last_step().known, 2U);
}

TEST(VaryingSteps, OneEncoderUsedTwiceAndTwoLosses) {
  torch::manual_seed(5);
  namespace nn = torch::nn;
  nn::Sequential encoder(nn::Linear(64, 256), nn::Tanh(), nn::LayerNorm(nn::LayerNormOptions({256})), nn::Dropout(0.1),
                         nn::Linear(256, 128), nn::GELU());
  const at::Tensor a = torch::randn({512, 64}), b = torch::randn({512, 64});
  const std::function<at::Tensor()> step = [&] {
    const at::Tensor x = encoder->forward(a), y = encoder->forward(b);
    return (x * y).mean() + (x - y).square().mean();
  };
  const Bytes budget = unplanned_peak(step) * 3 / 4;
  StepUnderTest test({encoder.ptr()});
  auto session = fit([&](int) { return step(); }, 0, {.budget = budget, .device = testing::test_device()});
  for (int i = 0; i < 3; ++i) {
    expect_equal_step(test, session, budget, step);
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    EXPECT_GT(session.last_step().replayed_ops, 0);
  }
}

TEST(VaryingSteps, GradientsAccumulateOverSeveralBatches) {
  torch::manual_seed(5);
  models::Gpt model(models::GptOptions{.blocks = 3, .width = 96, .heads = 4, .sequence = 48, .vocabulary = 128});
  std::vector<at::Tensor> batches;
  for (int i = 0; i < 4; ++i) batches.push_back(torch::randint(0, 128, {8, 48}));
  const auto loss_of = [&](const at::Tensor& tokens) { return model->loss(tokens, tokens) / 4; };
  const auto gradients = [&] {
    std::vector<at::Tensor> copies;
    for (const auto& p : model->parameters()) copies.push_back(p.grad().clone());
    model->zero_grad();
    return copies;
  };
  for (const auto& tokens : batches) loss_of(tokens).backward();
  const auto expected = gradients();
  const Bytes budget = unplanned_peak([&] { return loss_of(batches[0]); }) * 8 / 10;
  auto session = fit(loss_of, batches[0], {.budget = budget});
  for (int round = 0; round < 2; ++round) {
    test_memory().release_cached();
    test_memory().set_limit(budget);
    test_memory().reset_peak();
    for (const auto& tokens : batches) {
      session.backward(loss_of, tokens);
      EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    }
    EXPECT_LE(test_memory().stats().mapped_peak, budget);
    test_memory().set_limit(std::nullopt);
    const auto found = gradients();
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(testing::same_bits(expected[i], found[i])) << i;
  }
}

}  // namespace
}  // namespace snug
