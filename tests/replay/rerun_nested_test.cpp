// Reruns inside of reruns, of regions and of backward passes, and the other way round.
#include <gtest/gtest.h>

#include "tests/equivalence/bitwise.h"
#include "tests/replay/rerun_cases.h"

namespace snug {
namespace {

using testing::Counted;
using testing::kRerun;
using testing::kWithoutRandomState;
using testing::rerun;
using testing::same_bits;

TEST(RerunCheckpoint, BackwardTwiceWithRetainGraphCallsItTwiceAgain) {
  auto counted = std::make_shared<Counted>();
  const at::Tensor x = torch::randn({4}, at::requires_grad());
  const at::Tensor y = checkpoint(
                           kRerun, [counted](const at::Tensor& t) { return (*counted)(t); }, x)
                           .sum();
  const auto first = torch::autograd::grad({y}, {x}, {}, true);
  const auto second = torch::autograd::grad({y}, {x});
  EXPECT_TRUE(same_bits(first[0], second[0]));
  EXPECT_EQ(counted->calls, 3);
}

TEST(RerunCheckpoint, SecondOrderGradients) {
  const at::Tensor x = torch::randn({4}, at::requires_grad());
  const auto second = [&](const at::Tensor& y) {
    const auto g = torch::autograd::grad({y.sum()}, {x}, {}, true, true);
    return torch::autograd::grad({g[0].square().sum()}, {x})[0];
  };
  const auto call = [](const at::Tensor& t) { return t.sin() * t.tanh(); };
  EXPECT_TRUE(same_bits(second(call(x)), second(checkpoint(kRerun, call, x))));
}

/// Checkpoints in checkpoints of either kind.
TEST(RerunCheckpoint, NestsWithItselfAndWithRegions) {
  const at::Tensor x = torch::randn({6}, at::requires_grad());
  const auto leaf = [](const at::Tensor& t) { return torch::dropout(t.sin().cos(), 0.4, true).tanh(); };
  const auto gradient = [&](const std::function<at::Tensor(const at::Tensor&)>& call) {
    torch::manual_seed(5);
    return torch::autograd::grad({call(x).sum()}, {x})[0];
  };
  const at::Tensor plain = gradient([&](const at::Tensor& t) { return leaf(leaf(t * 2).exp()) * t; });
  for (int outer = 0; outer < 3; ++outer) {
    for (int inner = 0; inner < 3; ++inner) {
      const auto in_mode = [&](int mode, const std::function<at::Tensor(const at::Tensor&)>& call,
                               const at::Tensor& t) {
        if (mode == 0) return checkpoint(call, t);
        if (mode == 1) return checkpoint(kRerun, call, t);
        const Region keep(Keep{});
        return call(t);
      };
      const at::Tensor other = gradient([&](const at::Tensor& in) {
        return in_mode(
            outer,
            [&, in_mode](const at::Tensor& t) { return in_mode(inner, leaf, in_mode(inner, leaf, t * 2).exp()) * t; },
            in);
      });
      EXPECT_TRUE(same_bits(plain, other)) << outer << " around " << inner;
    }
  }
}

TEST(RerunCheckpoint, ARegionInsideHidesNoWriteFromOneOutside) {
  const at::Tensor x = torch::rand({4}, at::requires_grad());
  const auto call = [](const at::Tensor& t, bool region) {
    at::Tensor u = t * 3;
    {
      std::optional<Region> inner;
      if (region) inner.emplace(Recompute{});
      u.mul_(2);
    }
    return u * 1.5;
  };
  const at::Tensor plain = torch::autograd::grad({call(x, false).sin().sum()}, {x})[0];
  at::Tensor y;
  {
    const Region outer(Recompute{});
    y = checkpoint(kRerun, call, x, true).sin();
  }
  EXPECT_TRUE(same_bits(plain, torch::autograd::grad({y.sum()}, {x})[0]));
}

TEST(RerunCheckpoint, MayDifferentiateInside) {
  const at::Tensor x = torch::rand({5}, at::requires_grad());
  const auto call = [](const at::Tensor& t) {
    const at::Tensor e = (t.sin() * t.cos()).sum();
    const at::Tensor g = torch::autograd::grad({e}, {t}, {}, true, true)[0];
    return (g * g).sum();
  };
  const at::Tensor plain = torch::autograd::grad({call(x)}, {x})[0];
  for (const bool early : {true, false}) {
    EXPECT_TRUE(same_bits(plain, torch::autograd::grad({checkpoint(rerun({.early_stop = early}), call, x)}, {x})[0]));
    const Region outer(Keep{});
    EXPECT_TRUE(same_bits(plain, torch::autograd::grad({checkpoint(rerun({.early_stop = early}), call, x)}, {x})[0]));
  }
}

TEST(RerunCheckpoint, TakesAnArgumentThatWasWrittenBeforeInsideOfARegion) {
  const at::Tensor w = torch::rand({5}, at::requires_grad());
  at::Tensor input = torch::zeros({5});
  input.copy_(torch::rand({5}));
  const Region outer(Recompute{});
  const at::Tensor y = checkpoint(
      kRerun, [&](const at::Tensor& t) { return (t * w).sin(); }, input);
  EXPECT_TRUE(
      same_bits(torch::autograd::grad({(input * w).sin().sum()}, {w})[0], torch::autograd::grad({y.sum()}, {w})[0]));
}

TEST(RerunCheckpoint, ANestedOneHoldsNoInputsOfItsOwn) {
  const at::Tensor x = torch::randn({1 << 16}, at::requires_grad());
  const auto inner = [](const at::Tensor& t) { return t.sin().sin(); };
  const Bytes before = testing::test_memory().stats().allocated;
  const at::Tensor y = checkpoint(
      kWithoutRandomState,
      [&](const at::Tensor& t) {
        return checkpoint(kWithoutRandomState, inner, checkpoint(kWithoutRandomState, inner, t));
      },
      x);
  EXPECT_LE(testing::test_memory().stats().allocated - before, static_cast<Bytes>(y.nbytes()) + 4_KiB);
  const at::Tensor plain = torch::autograd::grad({inner(inner(x)).sum()}, {x})[0];
  EXPECT_TRUE(same_bits(plain, torch::autograd::grad({y.sum()}, {x})[0]));
}

}  // namespace
}  // namespace snug
