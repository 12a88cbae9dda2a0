// Steps that go backward themselves, and update: recorded without a trace, run as they are written.
#include "snug/replay/step_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "snug/memory/held_limit.h"
#include "snug/replay/undone_writes.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace snug {
namespace {

using testing::cpu;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::same_bits;

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
  const Bytes peak = plan::make_plan(replay::record_step([&] { return planned(data.narrow(0, 0, 512)); }, cpu(),
                                                         {.update = *planned.optimizer})
                                         .graph,
                                     "none", std::nullopt)
                         .predicted_peak;
  auto session = fit(planned, data.narrow(0, 0, 512), {.budget = peak * 8 / 10, .optimizer = *planned.optimizer});
  {
    const memory::HeldLimit none(cpu(), std::nullopt);  // what is compared takes memory, too
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
  const memory::HeldLimit none(cpu(), std::nullopt);
  expect_same(planned.everything(), plain.everything());
}

TEST(StepsThatStep, TheBudgetCountsTheStateThatWillCome) {
  Training training;
  const at::Tensor x = torch::randn({512, 128});
  const auto loss = [&](const at::Tensor& b) { return training.net->forward(b).pow(2).mean(); };
  Bytes state = 0;
  for (const at::Tensor& p : training.net->parameters()) state += 2 * cpu().rounded(static_cast<Bytes>(p.nbytes()));
  const auto with = replay::record_step([&] { return loss(x); }, cpu(), {.update = *training.optimizer});
  const auto without = replay::record_step([&] { return loss(x); }, cpu());
  EXPECT_EQ(with.state_to_come, state);
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
  const auto recorded = replay::record_step([&] { return training(x); }, cpu(), {.update = *training.optimizer});
  EXPECT_EQ(recorded.state_to_come, 0);
  expect_same(training.everything(), before);
}

TEST(StepsThatStep, ASecondBackwardIsRefused) {
  Training training;
  const at::Tensor x = torch::randn({64, 128});
  const auto twice = [&](const at::Tensor& b) {
    training.net->forward(b).mean().backward();
    training.net->forward(b).mean().backward();
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

TEST(StepsThatStep, AnOptimizerAndAnUpdateAreTooMany) {
  Training training;
  const FitOptions both{.budget = 1_GiB, .optimizer = *training.optimizer, .update = [] {}};
  EXPECT_THROW(fit(training, torch::randn({64, 128}), both), UsageError);
  torch::optim::LBFGS lbfgs(training.net->parameters());
  EXPECT_THROW(replay::Rehearsal{lbfgs}, UsageError);
}

TEST(UndoneWrites, PutBackWhatWasThereAndLeaveWhatWasMade) {
  const at::Tensor a = torch::randn({1000}), b = torch::randn({1000}), mean = torch::zeros({4});
  const at::Tensor a_before = a.clone(), mean_before = mean.clone();
  const Bytes allocated = cpu().stats().allocated;
  at::Tensor made;
  {
    replay::UndoneWrites undone;
    a.narrow(0, 0, 10).add_(b.narrow(0, 0, 10));
    a.zero_();
    made = torch::zeros({1000});
    made.add_(b);
    std::vector<at::Tensor> list{a, made};
    at::_foreach_mul_(list, 3);
    // It says nothing of its running statistics.
    at::native_batch_norm(torch::randn({8, 4}), {}, {}, mean, torch::ones({4}), true, 0.1, 1e-5);
    EXPECT_EQ(undone.copied(), 2U);  // a and the running mean; the rest was made inside
    EXPECT_FALSE(same_bits(mean, mean_before));
  }
  EXPECT_TRUE(same_bits(a, a_before));
  EXPECT_TRUE(same_bits(mean, mean_before));
  EXPECT_TRUE(same_bits(made, b * 3));
  EXPECT_EQ(cpu().stats().allocated, allocated + cpu().rounded(4000));
}

}  // namespace
}  // namespace snug
