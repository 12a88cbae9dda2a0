// Reruns end as soon as everything that was saved is there, and not before.
#include <gtest/gtest.h>

#include "tests/equivalence/bitwise.h"
#include "tests/replay/rerun_cases.h"

namespace snug {
namespace {

using testing::Counted;
using testing::kRerun;
using testing::rerun;
using testing::same_bits;

TEST(RerunCheckpoint, LeavesTheFunctionWhenTheLastTensorIsThere) {
  const at::Tensor x = torch::randn({4}, at::requires_grad());
  auto counted = std::make_shared<Counted>();
  const auto call = [counted](const at::Tensor& t) { return (*counted)(t); };
  checkpoint(kRerun, call, x).sum().backward();
  EXPECT_EQ(counted->calls, 2);
  EXPECT_EQ(counted->sines, 2);
  EXPECT_EQ(counted->cosines, 1);  // cos saves its input before it runs
  *counted = Counted();
  checkpoint(rerun({.early_stop = false}), call, x).sum().backward();
  EXPECT_EQ(counted->cosines, 2);
}

/// A gradient penalty asks for what has been saved so far, and that run of the function stops early.
TEST(RerunCheckpoint, AFunctionThatDifferentiatesIsHeldAgainstItsValues) {
  const at::Tensor x = torch::randn({16}, at::requires_grad());
  const auto call = [](const at::Tensor& t) {
    const at::Tensor y = t.sin().exp();
    const at::Tensor slope = torch::autograd::grad({y.sum()}, {t}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    return (y + slope.square()).tanh();
  };
  const at::Tensor plain = torch::autograd::grad({call(x).sum()}, {x})[0];
  for (const auto check : {DeterminismCheck::Metadata, DeterminismCheck::Values}) {
    const at::Tensor y = checkpoint(rerun({.determinism_check = check}), call, x);
    EXPECT_TRUE(same_bits(plain, torch::autograd::grad({y.sum()}, {x})[0]));
  }
}

/// rrelu saves its noise, and then draws it: the rerun must not stop in between.
/// The history of a view that was written is made anew at the next look, and lives as long as the view: what holds it
/// longer, or looks sooner, changes the order of sums. Found by random programs, in second-order gradients.
TEST(RerunCheckpoint, LeavesTheHistoryOfItsArgumentsAlone) {
  const at::Tensor w = torch::randn({3}, at::requires_grad());
  const auto lives_on = [&](bool checkpointed) {
    at::Tensor base = w.sin();
    at::Tensor view = base.view({3, 1});
    view.tanh_();
    const auto call = [](const at::Tensor& v, const at::Tensor& x) { return v.sum() + x.exp().sum(); };
    const at::Tensor y = checkpointed ? checkpoint(rerun({}), call, view, w) : call(view, w);
    const c10::weak_intrusive_ptr<c10::TensorImpl> watched(view.getIntrusivePtr());
    view = at::Tensor();
    return !watched.expired();
  };
  EXPECT_FALSE(lives_on(false));
  EXPECT_FALSE(lives_on(true));
}

/// rrelu saves its noise, and then draws it: the rerun must not stop in between.
/// What a checkpoint looks at must not change the order in which autograd adds gradients up: (1 + 2^-24) + 2^-24 is 1,
/// 2^-24 + 2^-24 + 1 is not.
TEST(RerunCheckpoint, LeavesTheHistoryOfAWrittenViewForTheFunctionToMake) {
  const at::Tensor w = torch::full({1}, 1.0, at::requires_grad());
  const auto gradient = [&](bool checkpointed) {
    at::Tensor base = w * 1.0;
    const at::Tensor view = base.view({1});
    base.mul_(1.0);  // the view's history is out of date now
    const std::vector<at::Tensor> arguments{w, view};
    const auto call = [](const std::vector<at::Tensor>& t) {
      return t[0] * std::pow(2.0, -24) + t[0] * std::pow(2.0, -24) + t[1] * 1.0;
    };
    const at::Tensor y = checkpointed ? checkpoint(rerun({}), call, arguments) : call(arguments);
    return torch::autograd::grad({y.sum()}, {w})[0];
  };
  EXPECT_TRUE(same_bits(gradient(false), gradient(true)));
}

TEST(RerunCheckpoint, EarlyStopWaitsForAnOperatorThatFillsWhatItSaved) {
  const at::Tensor x = torch::randn({64}, at::requires_grad());
  const auto call = [](const at::Tensor& t) { return torch::rrelu(t, 0.1, 0.9, /*training=*/true); };
  const auto gradient = [&](const std::function<at::Tensor()>& run) {
    torch::manual_seed(4);
    const at::Tensor y = run();
    std::vector<at::Tensor> others;  // where the noise was, something else is by now
    for (int k = 0; k < 50; ++k) others.push_back(torch::full({64}, 7.0));
    return torch::autograd::grad({y.sum()}, {x})[0];
  };
  const at::Tensor plain = gradient([&] { return call(x); });
  for (const auto check : {DeterminismCheck::Metadata, DeterminismCheck::Values})
    EXPECT_TRUE(same_bits(plain, gradient([&] { return checkpoint(rerun({.determinism_check = check}), call, x); })));
}

TEST(RerunCheckpoint, EarlyStopCanBeSetForAScope) {
  const at::Tensor x = torch::randn({4}, at::requires_grad());
  auto counted = std::make_shared<Counted>();
  const auto cosines_with = [&](bool outer, std::optional<bool> inner, bool argument) {
    *counted = Counted();
    const auto call = [counted](const at::Tensor& t) { return (*counted)(t); };
    at::Tensor y;
    {
      const EarlyStopScope scope(outer);
      std::optional<EarlyStopScope> further;
      if (inner) further.emplace(*inner);
      y = checkpoint(rerun({.early_stop = argument}), call, x);
    }
    y.sum().backward();
    return counted->cosines;
  };
  EXPECT_EQ(cosines_with(false, {}, true), 2);
  EXPECT_EQ(cosines_with(true, {}, false), 1);
  EXPECT_EQ(cosines_with(false, true, true), 1);
}

TEST(RerunCheckpoint, IsNotCalledAgainWhenItSavedNothing) {
  auto calls = std::make_shared<int>(0);
  const at::Tensor x = torch::randn({4}, at::requires_grad());
  checkpoint(
      kRerun, [calls](const at::Tensor& t) { return ++*calls, t.clone(); }, x)
      .sum()
      .backward();
  EXPECT_EQ(*calls, 1);
}

}  // namespace
}  // namespace snug
