// Writes of operators whose schema does not tell of them.
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <utility>

#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace snug {
namespace {

using testing::same_bits;

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
    (weight * op.call(torch::ones({4}), calls).sin()).sum().backward();
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

}  // namespace
}  // namespace snug
