// Writes of operators whose schema does not tell of them.
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <optional>
#include <utility>
#include <vector>

#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace snug {
namespace {

using testing::expect_same;
using testing::same_bits;
using testing::StepUnderTest;
using testing::test_memory;

/// Running statistics, which the operator moves though its schema does not say so.
TEST(HiddenWrites, MoveNoRunningStatisticsASecondTime) {
  const at::Tensor x = torch::randn({8, 4, 5}), weight = torch::rand({4}).requires_grad_();
  const auto run = [&](const at::Tensor& mean, const at::Tensor& var) {
    const at::Tensor moments = std::get<0>(at::batch_norm_update_stats(x, mean, var, 0.1));
    return (weight * moments.sin()).sum();
  };
  const at::Tensor mean = torch::zeros({4}), var = torch::ones({4});
  run(mean, var).backward();
  const at::Tensor expected = std::exchange(weight.mutable_grad(), at::Tensor());
  const at::Tensor again_mean = torch::zeros({4}), again_var = torch::ones({4});
  const Region region(Recompute{});
  run(again_mean, again_var).backward();
  EXPECT_GT(region.replayed_ops(), 1);
  EXPECT_TRUE(same_bits(weight.grad(), expected));
  EXPECT_FALSE(same_bits(mean, torch::zeros({4})));
  EXPECT_TRUE(same_bits(again_mean, mean));
  EXPECT_TRUE(same_bits(again_var, var));
}

/// Autograd saves them as they are after the operator: the program has them, and keeping them takes no memory.
TEST(HiddenWrites, ToRunningStatisticsAreNotReplayedForTheirResults) {
  torch::nn::BatchNorm2d norm(4);
  StepUnderTest test({norm.ptr()});
  const at::Tensor x = torch::randn({8, 4, 5, 5});
  const auto forward = [&] { return norm->forward(x.exp()).sin().sum(); };
  const auto plain = test.run_plain(forward);
  auto recorded = replay::record_step(forward, test_memory());
  plan::MemoryPlan plan = plan::plan_none(recorded.graph);
  int statistics = 0;
  for (plan::OpId op = 0; op < recorded.graph.flow.ops(); ++op) {
    for (const plan::Output& out : recorded.graph.flow.outputs(op)) {
      if (out.overwrites == plan::kNoValue || !recorded.graph.values[plan::at(out.value)].saved) continue;
      plan.actions[plan::at(out.value)] = plan::kRecompute;
      ++statistics;
    }
  }
  EXPECT_EQ(statistics, 2);
  plan = predicted(recorded.graph, std::move(plan));
  EXPECT_EQ(plan::simulate(recorded.graph, plan).replayed_ops, 0);
  Session session(recorded, plan::Planner(recorded.graph, plan), std::nullopt, test_memory());
  expect_same(plain, test.run([&] { return session.backward(forward); }));
  EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
  EXPECT_EQ(session.last_step().replayed_ops, 0);
}

/// x times the number of calls so far, of which its schema says nothing.
at::Tensor times_calls(const at::Tensor& x, const at::Tensor& calls) {
  calls.data_ptr<float>()[0] += 1;
  return x * calls;
}
TORCH_LIBRARY(snug_hidden_writes, library) { library.def("times_calls(Tensor x, Tensor calls) -> Tensor"); }
TORCH_LIBRARY_IMPL(snug_hidden_writes, CompositeExplicitAutograd, library) { library.impl("times_calls", times_calls); }

TEST(HiddenWrites, OfOperatorsOfOnesOwnAreDeclared) {
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("snug_hidden_writes::times_calls", "")
                      .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  const at::Tensor weight = torch::rand({4}).requires_grad_();
  const auto calls_after_a_replay = [&] {
    const at::Tensor calls = torch::zeros({1});
    weight.mutable_grad() = at::Tensor();
    const Region region(Recompute{});
    const at::Tensor loss = (weight * op.call(torch::ones({4}), calls).sin()).sum();
    loss.backward();
    EXPECT_GT(region.replayed_ops(), 1);
    return calls.item<float>();
  };
  // Contents are only compared where they can be read without waiting.
  if (testing::test_device().is_cpu()) {
    EXPECT_THROW(calls_after_a_replay(), Error) << "it is found that somebody wrote";
  }
  declare_operator({.name = "snug_hidden_writes::times_calls", .writes = {1}});
  EXPECT_EQ(calls_after_a_replay(), 1);
  EXPECT_TRUE(same_bits(weight.grad(), torch::ones({4}).sin()));
}

/// Adds up in an argument that has to be named, and is no `out`: it is read.
at::Tensor add_up(const at::Tensor& x, at::Tensor sum) {
  sum.add_(x);
  return sum * 2;
}
TORCH_LIBRARY(snug_named_writes, library) { library.def("add_up(Tensor x, *, Tensor(a!) sum) -> Tensor"); }
TORCH_LIBRARY_IMPL(snug_named_writes, CompositeExplicitAutograd, library) { library.impl("add_up", add_up); }

TEST(HiddenWrites, OfAnArgumentThatHasToBeNamedAreNoOverwriting) {
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("snug_named_writes::add_up", "")
                      .typed<at::Tensor(const at::Tensor&, at::Tensor)>();
  const at::Tensor weight = torch::rand({4096}).requires_grad_(), x = torch::rand({4096});
  const auto gradient = [&](bool replays) {
    weight.mutable_grad() = at::Tensor();
    std::optional<Region> region;
    if (replays) region.emplace(Recompute{});
    const at::Tensor sum = torch::ones({4096});
    const at::Tensor y = op.call(x, sum);
    at::Tensor loss = (weight * y).sin().sum();
    // What is made from memory without contents must not have the old contents by chance.
    const std::vector<at::Tensor> others{torch::full({4096}, 7.0), torch::full({4096}, 9.0)};
    loss.backward();
    EXPECT_TRUE(!replays || region->replayed_ops() > 1);
    return weight.grad();
  };
  EXPECT_TRUE(same_bits(gradient(false), gradient(true)));
}

/// A count that belongs to no argument.
at::Tensor& calls_of_all() {
  static at::Tensor calls = torch::zeros({1});
  return calls;
}

at::Tensor counted(const at::Tensor& x) {
  calls_of_all().add_(1);
  at::Tensor result = at::zeros_like(x);
  result.view({-1}).add_(x.reshape({-1}));  // its own, and no hidden write
  return result * calls_of_all();
}
TORCH_LIBRARY(snug_counted_writes, library) { library.def("counted(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(snug_counted_writes, CompositeExplicitAutograd, library) { library.impl("counted", counted); }

TEST(HiddenWrites, OfTensorsThatAnOperatorIsNotGivenLetItRunOnce) {
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("snug_counted_writes::counted", "")
                      .typed<at::Tensor(const at::Tensor&)>();
  const at::Tensor weight = torch::rand({64}).requires_grad_(), x = torch::rand({64});
  const auto loss = [&] { return (weight.sin() * op.call(x.cos()).sin()).sum(); };
  calls_of_all().zero_();
  loss().backward();
  const at::Tensor expected = std::exchange(weight.mutable_grad(), at::Tensor());
  calls_of_all().zero_();
  {
    const Region region(Recompute{});
    loss().backward();
    EXPECT_GT(region.replayed_ops(), 0);
  }
  EXPECT_TRUE(same_bits(weight.grad(), expected));
  EXPECT_EQ(calls_of_all().item<float>(), 1);

  weight.mutable_grad() = at::Tensor();
  calls_of_all().zero_();
  replay::RecordedStep step = replay::record_step(loss, memory::device_memory(testing::test_device()));
  EXPECT_EQ(calls_of_all().item<float>(), 0) << "recording leaves no trace";
  Session session(std::move(step), "every_block", std::nullopt, memory::device_memory(testing::test_device()));
  session.backward(loss);
  EXPECT_TRUE(same_bits(weight.grad(), expected));
  EXPECT_EQ(calls_of_all().item<float>(), 1);
}

}  // namespace
}  // namespace snug
