// Steps that go backward themselves, and update: recorded without a trace, run as they are written.
#include "snug/replay/step_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "snug/memory/held_limit.h"
#include "snug/plan/run/presets.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace snug {
namespace {

using testing::expect_same;
using ::testing::HasSubstr;
using testing::same_bits;
using testing::test_memory;

struct Training {
  Training() : net(torch::nn::Sequential()) {
    torch::manual_seed(7);
    for (int i = 0; i < 6; ++i) {
      net->push_back(torch::nn::Linear(128, 128));
      net->push_back(torch::nn::GELU());
      net->push_back(torch::nn::Dropout(0.1));
    }
    optimizer = std::make_unique<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(1e-2));
  }
  at::Tensor operator()(const at::Tensor& x) {
    optimizer->zero_grad();
    at::Tensor loss = net->forward(x).pow(2).mean();
    loss.backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.1);
    optimizer->step();
    return loss;
  }
  [[nodiscard]] std::vector<at::Tensor> everything() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& p : net->parameters()) {
      all.push_back(p.detach().clone());
      all.push_back(p.grad().defined() ? p.grad().clone() : at::Tensor());
      const auto found = optimizer->state().find(p.unsafeGetTensorImpl());
      if (found == optimizer->state().end()) continue;
      const auto& state = static_cast<const torch::optim::AdamWParamState&>(*found->second);
      all.push_back(state.exp_avg().clone());
      all.push_back(state.exp_avg_sq().clone());
      all.push_back(torch::tensor(state.step()));
    }
    return all;
  }
  torch::nn::Sequential net;
  std::unique_ptr<torch::optim::AdamW> optimizer;
};

TEST(StepsThatStep, TrainAsWithoutASession) {
  const at::Tensor data = torch::randn({10 * 512, 128});
  Training plain, planned;
  torch::manual_seed(1);
  std::vector<at::Tensor> losses;
  for (int i = 0; i < 10; ++i) losses.push_back(plain(data.narrow(0, i * 512, 512)).detach());

  torch::manual_seed(1);
  const auto before = planned.everything();
  const auto random = at::globalContext().defaultGenerator(c10::kCPU).get_state();
  const Bytes peak = plan::make_plan(replay::record_step([&] { return planned(data.narrow(0, 0, 512)); }, test_memory(),
                                                         {.update = *planned.optimizer})
                                         .graph,
                                     "none", std::nullopt)
                         .predicted_peak;
  auto session = fit(planned, data.narrow(0, 0, 512), {.budget = peak * 8 / 10, .optimizer = *planned.optimizer});
  {
    const memory::HeldLimit none(test_memory(), std::nullopt);  // what is compared takes memory, too
    expect_same(planned.everything(), before);
    EXPECT_TRUE(same_bits(at::globalContext().defaultGenerator(c10::kCPU).get_state(), random));
  }
  EXPECT_TRUE(planned.optimizer->state().empty());
  EXPECT_GT(session.graph().update_seconds, 0);

  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(
        same_bits(session.backward(planned, data.narrow(0, i * 512, 512)), losses[static_cast<std::size_t>(i)]));
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    EXPECT_EQ(session.last_step().known, 1U);
    EXPECT_GT(session.last_step().replayed_ops, 0);
  }
  const memory::HeldLimit none(test_memory(), std::nullopt);
  expect_same(planned.everything(), plain.everything());
}

TEST(StepsThatStep, TheBudgetCountsTheStateThatWillCome) {
  Training training;
  const at::Tensor x = torch::randn({512, 128});
  const auto loss = [&](const at::Tensor& b) { return training.net->forward(b).pow(2).mean(); };
  Bytes state = 0;
  for (const at::Tensor& p : training.net->parameters())
    state += 2 * test_memory().rounded(static_cast<Bytes>(p.nbytes()));
  const auto with = replay::record_step([&] { return loss(x); }, test_memory(), {.update = *training.optimizer});
  const auto without = replay::record_step([&] { return loss(x); }, test_memory());
  EXPECT_EQ(with.passing.front().state_to_come, state);
  EXPECT_EQ(with.graph.static_bytes, without.graph.static_bytes + state);
  EXPECT_TRUE(training.optimizer->state().empty());

  // At the floor with it, the update comes after fit and every step goes on.
  const Bytes floor = plan::Budget::for_limit(1).floor_for(plan::Planner(with.graph, "optimal").floor(with.graph));
  auto session = fit(loss, x, {.budget = floor, .optimizer = *training.optimizer});
  for (int i = 0; i < 3; ++i) {
    session.backward(loss, x);
    training.optimizer->step();
    training.optimizer->zero_grad();
    EXPECT_TRUE(session.last_step().followed_plan);
  }
  EXPECT_EQ(session.graph().static_bytes, with.graph.static_bytes);  // not planned again
}

TEST(StepsThatStep, StateThatIsThereBeforeStaysAsItIs) {
  Training training;
  const at::Tensor x = torch::randn({64, 128});
  training(x);
  const auto before = training.everything();
  const auto recorded =
      replay::record_step([&] { return training(x); }, test_memory(), {.update = *training.optimizer});
  EXPECT_EQ(recorded.passing.front().state_to_come, 0);
  expect_same(training.everything(), before);
}

/// A session with a share of what the step takes unplanned.
template <class Step>
Session planned_at(double share, Step&& step, const at::Tensor& batch, const replay::Rehearsal& update = {}) {
  replay::RecordedStep recorded = replay::record_step([&] { return step(batch); }, test_memory(), {.update = update});
  const Bytes unplanned = plan::plan_none(recorded.graph).predicted_peak;
  return {std::move(recorded), "optimal", plan::Budget::for_share(share, unplanned), test_memory()};
}

/// Runs the step, which was recorded before, and expects the peak that its plan predicts.
template <class Step>
void expect_predicted_peak(Session& session, Step&& step, const at::Tensor& batch) {
  test_memory().reset_peak();
  session.backward(step, batch);
  EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
  EXPECT_EQ(session.last_step().evictions, 0);
  const Bytes peak = test_memory().stats().allocated_peak;
  EXPECT_LE(peak, session.plan().predicted_peak);
  EXPECT_GE(peak, session.plan().predicted_peak - 16_KiB);
}

TEST(StepsThatStep, BatchesOfOtherSizesArePlannedAsTheyAre) {
  for (const bool gradients_at_fit : {false, true}) {
    SCOPED_TRACE(gradients_at_fit);
    Training training;
    const at::Tensor x = torch::randn({512, 128}), shorter = torch::randn({400, 128});
    if (gradients_at_fit) training(x);
    auto session = planned_at(0.8, training, x);
    for (int i = 0; i < 6; ++i) session.backward(training, i % 2 == 0 ? shorter : x);
    EXPECT_EQ(session.last_step().known, 2U);
    session.finish_searches();
    for (int i = 0; i < 4; ++i) expect_predicted_peak(session, training, i % 2 == 0 ? shorter : x);
  }
}

TEST(StepsThatStep, GradientsThatGoAfterTheForwardPassAreThereDuringIt) {
  Training training;
  const at::Tensor x = torch::randn({512, 128});
  const auto step = [&](const at::Tensor& b) {
    at::Tensor loss = training.net->forward(b).pow(2).mean();
    training.optimizer->zero_grad();
    loss.backward();
    training.optimizer->step();
    return loss;
  };
  auto session = planned_at(1, step, x);
  for (int i = 0; i < 3; ++i) session.backward(step, x);
  EXPECT_EQ(session.last_step().known, 2U) << "with gradients before, and without";
  for (int i = 0; i < 3; ++i) expect_predicted_peak(session, step, x);
}

TEST(StepsThatStep, SomeLetGoOfGradientsAndSomeAddToThem) {
  Training training;
  const at::Tensor x = torch::randn({512, 128});
  int count = 0;
  const auto step = [&](const at::Tensor& b) {
    if (count++ % 3 == 0) training.optimizer->zero_grad();
    at::Tensor loss = training.net->forward(b).pow(2).mean();
    loss.backward();
    return loss;
  };
  auto session = planned_at(1, step, x);
  count = 0;
  for (int i = 0; i < 3; ++i) session.backward(step, x);
  EXPECT_EQ(session.last_step().known, 2U);
  for (int i = 0; i < 6; ++i) expect_predicted_peak(session, step, x);
}

TEST(StepsThatStep, StateIsCountedOnceWhereGradientsStay) {
  Training training;
  const at::Tensor x = torch::randn({512, 128});
  const auto loss = [&](const at::Tensor& b) { return training.net->forward(b).pow(2).mean(); };
  auto session = planned_at(1, loss, x, *training.optimizer);
  for (int i = 0; i < 4; ++i) {
    session.backward(loss, x);
    training.optimizer->step();
    training.optimizer->zero_grad(/*set_to_none=*/false);
  }
  EXPECT_EQ(session.last_step().known, 2U);
  EXPECT_NEAR(static_cast<double>(session.graph().static_bytes), static_cast<double>(test_memory().stats().allocated),
              16 << 10);
  for (int i = 0; i < 2; ++i) expect_predicted_peak(session, loss, x);
}

TEST(StepsThatStep, AnUpdateMayLetGoOfTheGradients) {
  Training training;
  const at::Tensor x = torch::randn({512, 128});
  const auto loss = [&](const at::Tensor& b) { return training.net->forward(b).pow(2).mean(); };
  const auto graph_with = [&](const std::function<void()>& update) {
    replay::Rehearsal rehearsal(update);
    rehearsal.forget = [&] { training.optimizer->state().clear(); };
    return replay::record_step([&] { return loss(x); }, test_memory(), {.update = rehearsal});
  };
  const auto keeps = graph_with([&] { training.optimizer->step(); });
  const auto frees = graph_with([&] {
    training.optimizer->step();
    training.optimizer->zero_grad();
  });
  EXPECT_GT(keeps.passing.front().state_to_come, 0);
  EXPECT_EQ(frees.passing.front().state_to_come, keeps.passing.front().state_to_come);
  EXPECT_EQ(frees.graph.update_bytes, keeps.graph.update_bytes);
}

TEST(StepsThatStep, HalfABackwardPassIsNoStep) {
  Training training;
  const at::Tensor x = torch::randn({512, 128});
  bool fails = false;
  const auto step = [&](const at::Tensor& b) {
    at::Tensor hidden = training.net->forward(b);
    if (fails)
      hidden.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("no memory, say"); });
    at::Tensor loss = hidden.pow(2).mean();
    try {
      loss.backward();
    } catch (const std::exception&) {  // the batch is skipped
      training.optimizer->zero_grad();
    }
    return loss;
  };
  auto session = planned_at(1, step, x);
  session.backward(step, x);
  training.optimizer->zero_grad();
  const at::Tensor shorter = x.narrow(0, 0, 100);
  session.backward(step, shorter);  // steps vary from here on
  const std::size_t known = session.last_step().known;
  training.optimizer->zero_grad();
  fails = true;
  session.backward(step, x.narrow(0, 0, 200));
  EXPECT_EQ(session.last_step().known, known);
  EXPECT_FALSE(session.last_step().planned_anew);
  EXPECT_THROW((void)planned_at(1, step, x), UsageError);
  fails = false;
  session.backward(step, x);
  EXPECT_TRUE(session.last_step().followed_plan);
  EXPECT_TRUE(training.net->parameters().front().grad().defined());
}

TEST(StepsThatStep, OneThatTriesAgainIsRecorded) {
  Training training;
  const at::Tensor x = torch::randn({64, 128});
  const auto step = [&](const at::Tensor& b) {
    for (int i = 0; i < 2; ++i) {
      try {
        return training(b);
      } catch (const std::exception&) {
      }
    }
    throw std::runtime_error("tried twice");
  };
  auto session = planned_at(1, step, x, *training.optimizer);
  session.backward(step, x);
  EXPECT_TRUE(session.last_step().followed_plan);
}

TEST(StepsThatStep, AStepInsideThatFailsLeavesTheOuterOne) {
  Training outer, inner;
  const at::Tensor x = torch::randn({64, 128});
  bool fails = false;
  const auto inside = [&](const at::Tensor& b) {
    at::Tensor hidden = inner.net->forward(b);
    if (fails) hidden.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("fails"); });
    return hidden.pow(2).mean();
  };
  auto helper = fit(inside, x, {.budget = 1_GiB});
  auto session = fit(outer, x, {.budget = 1_GiB});
  fails = true;
  const auto step = [&](const at::Tensor& b) {
    EXPECT_THROW(helper.backward(inside, b), std::exception);
    return outer(b);
  };
  session.backward(step, x);
  EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
}

TEST(StepsThatStep, ASecondBackwardIsRefused) {
  Training training;
  const at::Tensor x = torch::randn({64, 128});
  const auto twice = [&](const at::Tensor& b) {
    const at::Tensor loss = training.net->forward(b).mean();
    loss.backward({}, /*keep_graph=*/true);
    loss.backward();
    return at::Tensor();
  };
  auto session = fit(twice, x, {.budget = 1_GiB});
  try {
    session.backward(twice, x);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("second time"));
    EXPECT_THAT(error.what(), HasSubstr("micro-batch"));
  }
  const auto tries_twice = [&](const at::Tensor& b) {
    at::Tensor loss = training.net->forward(b).mean();
    try {
      loss.backward();
      loss.backward();
    } catch (const std::exception&) {
    }
    return loss;
  };
  EXPECT_THROW(session.backward(tries_twice, x), UsageError) << "a refusal is not lost where it is caught";
  session.backward([&](const at::Tensor& b) { return training.net->forward(b).mean(); }, x);  // it goes on
}

TEST(StepsThatStep, OneThatWasRefusedDoesNotUpdateWhileItIsRecorded) {
  Training training;
  const at::Tensor x = torch::randn({64, 128});
  const auto before = training.everything();
  const auto refused = [&] {
    at::Tensor loss = training.net->forward(x).mean();
    loss.backward();
    try {
      training.net->forward(x).mean().backward();
    } catch (const std::exception&) {
    }
    training.optimizer->step();
    return loss;
  };
  EXPECT_THROW((void)replay::record_step(refused, test_memory(), {.until = replay::RecordUntil::UpdateBegins}),
               UsageError);
  expect_same(training.everything(), before);
}

TEST(StepsThatStep, AnOptimizerAndAnUpdateAreTooMany) {
  Training training;
  const FitOptions both{.budget = 1_GiB, .optimizer = *training.optimizer, .update = [] {}};
  EXPECT_THROW(fit(training, torch::randn({64, 128}), both), UsageError);
  torch::optim::LBFGS lbfgs(training.net->parameters());
  EXPECT_THROW(replay::Rehearsal{lbfgs}, UsageError);
}

}  // namespace
}  // namespace snug
