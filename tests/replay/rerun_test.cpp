// Checkpoints that call their function again.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace snug {
namespace {

using testing::same_bits;

const CheckpointOptions kRerun{.mode = Rerun{}};
const CheckpointOptions kWithoutRandomState{.mode = Rerun{.preserve_rng_state = false}};  // it takes 5 KiB

CheckpointOptions rerun(Rerun options) { return {.mode = options}; }

/// A function that counts its calls and the kernels that it runs to the end.
struct Counted {
  int calls = 0, sines = 0, cosines = 0;
  at::Tensor operator()(const at::Tensor& x) {
    ++calls;
    const at::Tensor sine = x.sin();
    ++sines;
    const at::Tensor cosine = sine.cos();
    ++cosines;
    return cosine.clone();
  }
};

TEST(RerunCheckpoint, GivesThePlainGradients) {
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::Tanh(), torch::nn::Dropout(0.3),
                            torch::nn::Linear(16, 4));
  const at::Tensor x = torch::randn({5, 8}, at::requires_grad());
  const auto run = [&](bool checkpointed) {
    net->zero_grad();
    x.mutable_grad() = at::Tensor();
    torch::manual_seed(7);
    const auto call = [&](const at::Tensor& in) { return net->forward(in); };
    const at::Tensor y = checkpointed ? checkpoint(kRerun, call, x) : call(x);
    const at::Tensor after = torch::rand({3});
    y.square().sum().backward();
    std::vector<at::Tensor> all{x.grad().clone(), y.detach(), after, torch::rand({3})};
    for (const auto& p : net->parameters()) all.push_back(p.grad().clone());
    return all;
  };
  const auto plain = run(false), other = run(true);
  for (std::size_t k = 0; k < plain.size(); ++k) EXPECT_TRUE(same_bits(plain[k], other[k])) << k;
}

TEST(RerunCheckpoint, HoldsNothingThatIsMadeInsideUntilBackward) {
  const at::Tensor x = torch::randn({1 << 16}, at::requires_grad());
  const Bytes before = testing::cpu().stats().allocated;
  const at::Tensor y = checkpoint(
      kWithoutRandomState, [](const at::Tensor& t) { return t.sin().sin().sin().sin(); }, x);
  EXPECT_LE(testing::cpu().stats().allocated - before, static_cast<Bytes>(y.nbytes()) + 4_KiB);
  y.sum().backward();
}

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

TEST(RerunCheckpoint, FewerSavedTensorsAreAnError) {
  auto calls = std::make_shared<int>(0);
  const at::Tensor x = torch::randn({4}, at::requires_grad());
  const auto less = [calls](const at::Tensor& t) { return ++*calls == 1 ? t.sin().sin().sin() : t.sin().sin(); };
  try {
    checkpoint(kRerun, less, x).sum().backward();
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("saved 3 tensors in forward and 2 when it ran again"), std::string::npos)
        << error.what();
  }
}

TEST(RerunCheckpoint, MoreSavedTensorsAreAnErrorUnlessItStopsBefore) {
  auto calls = std::make_shared<int>(0);
  const at::Tensor x = torch::randn({4}, at::requires_grad());
  const auto more = [calls](const at::Tensor& t) { return ++*calls == 1 ? t.sin().sin() : t.sin().sin().sin(); };
  try {
    checkpoint(rerun({.early_stop = false}), more, x).sum().backward();
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("is saving more than that"), std::string::npos) << error.what();
  }
  *calls = 0;
  EXPECT_NO_THROW(checkpoint(kRerun, more, x).sum().backward());
}

TEST(RerunCheckpoint, AnotherShapeIsAnErrorThatNamesBoth) {
  auto calls = std::make_shared<int>(0);
  const at::Tensor x = torch::randn({2}, at::requires_grad());
  const auto other = [calls](const at::Tensor& t) { return (++*calls == 1 ? t : t.narrow(0, 0, 1)).sin(); };
  try {
    checkpoint(kRerun, other, x).sum().backward();
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("Float [2] on cpu in forward and is Float [1] on cpu"), std::string::npos) << text;
  }
}

TEST(RerunCheckpoint, DebugTellsWhereTheRunsPart) {
  auto calls = std::make_shared<int>(0);
  const at::Tensor x = torch::randn({2}, at::requires_grad());
  const auto other = [calls](const at::Tensor& t) { return ++*calls == 1 ? t.exp().sin().tanh() : t.exp().cos(); };
  try {
    checkpoint(rerun({.debug = true, .early_stop = false}), other, x).sum().backward();
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(
        std::string(error.what()).find("they part at operator 2 of 3: aten::sin in forward, aten::cos when it ran"),
        std::string::npos)
        << error.what();
  }
}

TEST(RerunCheckpoint, OtherValuesAreFoundWhenAskedFor) {
  auto calls = std::make_shared<int>(0);
  const at::Tensor x = torch::randn({8}, at::requires_grad());
  const auto other = [calls](const at::Tensor& t) { return (t * static_cast<double>(++*calls)).sin(); };
  EXPECT_NO_THROW(checkpoint(kRerun, other, x).sum().backward());
  *calls = 0;
  EXPECT_THROW(checkpoint(rerun({.determinism_check = DeterminismCheck::Values}), other, x).sum().backward(), Error);
  EXPECT_NO_THROW(checkpoint(
                      rerun({.determinism_check = DeterminismCheck::Values}),
                      [](const at::Tensor& t) { return torch::dropout(t, 0.5, true).sin(); }, x)
                      .sum()
                      .backward());
}

TEST(RerunCheckpoint, AWeightChangedSinceIsAnError) {
  const at::Tensor w = torch::randn({4}, at::requires_grad()), x = torch::randn({4}, at::requires_grad());
  const at::Tensor y = checkpoint(
      kRerun, [&](const at::Tensor& t) { return t * w; }, x);
  {
    const torch::NoGradGuard no_grad;
    w.mul_(2);
  }
  EXPECT_THROW(y.sum().backward(), Error);
}

TEST(RerunCheckpoint, TakesAnyArgumentsAndGivesAnyResults) {
  const at::Tensor a = torch::randn({3}, at::requires_grad()), b = torch::randn({3}, at::requires_grad());
  struct Both {
    at::Tensor sum;
    std::string word;
  };
  const auto call = [](std::vector<at::Tensor> list, std::optional<at::Tensor> maybe, double scale,
                       const std::map<std::string, at::Tensor>& named, const std::string& word) {
    return Both{(list[0] * list[1]).sin() * scale + maybe.value_or(list[0]) * named.at("b"), word};
  };
  const auto gradients = [&](const Both& both) { return torch::autograd::grad({both.sum.sum()}, {a, b}); };
  const std::vector<at::Tensor> list{a, b};
  const std::map<std::string, at::Tensor> named{{"b", b}};
  const auto plain = gradients(call(list, std::nullopt, 0.5, named, "bar"));
  const Both both = checkpoint(kRerun, call, list, std::optional<at::Tensor>(), 0.5, named, std::string("bar"));
  EXPECT_EQ(both.word, "bar");
  const auto other = gradients(both);
  EXPECT_TRUE(same_bits(plain[0], other[0]));
  EXPECT_TRUE(same_bits(plain[1], other[1]));
}

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

TEST(RerunCheckpoint, AWriteToWhatWasSavedIsAnErrorAsInPlainAutograd) {
  const at::Tensor x = torch::rand({5}, at::requires_grad());
  const auto call = [](const at::Tensor& t) {
    at::Tensor u = t * 2;
    const at::Tensor y = u.sin();
    u.add_(1);
    return y.exp() + u;
  };
  EXPECT_THROW(torch::autograd::grad({call(x).sum()}, {x}), c10::Error);
  EXPECT_THROW(torch::autograd::grad({checkpoint(kRerun, call, x).sum()}, {x}), Error);
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

TEST(RerunCheckpoint, TheValuesOfRunningStatisticsAreNotHeldAgainstIt) {
  torch::nn::BatchNorm1d norm(4);
  const at::Tensor x = torch::randn({8, 4}, at::requires_grad());
  const at::Tensor y = checkpoint(
      rerun({.determinism_check = DeterminismCheck::Values}), [&](const at::Tensor& t) { return norm(t).sin(); }, x);
  EXPECT_NO_THROW(y.sum().backward());
}

TEST(RerunCheckpoint, IsWrittenAsTheDocumentationHasIt) {
  const at::Tensor x = torch::rand({3}, at::requires_grad());
  const auto function = [](const at::Tensor& t, int times, const std::string&) { return t.sin() * times; };
  EXPECT_NO_THROW(snug::checkpoint({.mode = snug::Rerun{}}, function, x, 3, "any argument").sum().backward());
  torch::nn::Sequential layers(torch::nn::Linear(3, 3), torch::nn::Tanh(), torch::nn::Linear(3, 3), torch::nn::Tanh());
  EXPECT_NO_THROW(
      snug::checkpoint_sequential(*layers, 4, x, {.mode = snug::Rerun{.early_stop = false}}).sum().backward());
}

TEST(RerunCheckpoint, TakesArraysAndRefusesWhatCannotBeCopied) {
  const at::Tensor x = torch::rand({3}, at::requires_grad());
  const auto named = [](const at::Tensor& t, const std::string& name) { return name == "sine" ? t.sin() : t.cos(); };
  EXPECT_NO_THROW(checkpoint(kRerun, named, x, "sine").sum().backward());
  const auto owns = [held = std::make_unique<int>(3)](const at::Tensor& t) { return t * *held; };
  EXPECT_THROW(checkpoint(kRerun, owns, x), UsageError);
  EXPECT_NO_THROW(checkpoint(CheckpointOptions{}, owns, x).sum().backward());
}

TEST(RerunCheckpoint, AFunctionThatChangesItselfBeginsAnew) {
  const at::Tensor x = torch::rand({3}, at::requires_grad());
  const at::Tensor y =
      checkpoint(
          kRerun, [calls = 0](const at::Tensor& t) mutable { return (t * static_cast<double>(++calls)).sin(); }, x)
          .sum();
  const at::Tensor first = torch::autograd::grad({y}, {x}, {}, true)[0];
  EXPECT_TRUE(same_bits(first, torch::autograd::grad({y}, {x})[0]));
}

TEST(RerunCheckpoint, ANestedOneHoldsNoInputsOfItsOwn) {
  const at::Tensor x = torch::randn({1 << 16}, at::requires_grad());
  const auto inner = [](const at::Tensor& t) { return t.sin().sin(); };
  const Bytes before = testing::cpu().stats().allocated;
  const at::Tensor y = checkpoint(
      kWithoutRandomState,
      [&](const at::Tensor& t) {
        return checkpoint(kWithoutRandomState, inner, checkpoint(kWithoutRandomState, inner, t));
      },
      x);
  EXPECT_LE(testing::cpu().stats().allocated - before, static_cast<Bytes>(y.nbytes()) + 4_KiB);
  const at::Tensor plain = torch::autograd::grad({inner(inner(x)).sum()}, {x})[0];
  EXPECT_TRUE(same_bits(plain, torch::autograd::grad({y.sum()}, {x})[0]));
}

TEST(RerunCheckpoint, RestoresAutocast) {
  const at::Tensor x = torch::randn({4, 8}, at::requires_grad()), w = torch::randn({8, 8}, at::requires_grad());
  const auto run = [&](bool checkpointed) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
    const auto call = [&](const at::Tensor& t) { return torch::linear(torch::linear(t, w), w).exp(); };
    const at::Tensor y = checkpointed ? checkpoint(kRerun, call, x) : call(x);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    auto gradients = torch::autograd::grad({y.sum()}, {x, w});
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
    return gradients;
  };
  const auto plain = run(false), other = run(true);
  EXPECT_TRUE(same_bits(plain[0], other[0]));
  EXPECT_TRUE(same_bits(plain[1], other[1]));
}

TEST(RerunCheckpoint, AnExceptionInTheRerunLeavesEverythingAsBefore) {
  auto calls = std::make_shared<int>(0);
  const at::Tensor x = torch::randn({4}, at::requires_grad());
  const auto call = [calls](const at::Tensor& t) {
    const at::Tensor y = torch::dropout(t, 0.5, true).sin();
    if (++*calls == 2) throw std::runtime_error("not this time");
    return y.sin();
  };
  const Bytes before = testing::cpu().stats().allocated;
  {
    const at::Tensor y = checkpoint(kRerun, call, x).sum();
    const at::Tensor random = at::globalContext().defaultGenerator(at::kCPU).get_state();
    EXPECT_THROW(torch::autograd::grad({y}, {x}, {}, true), std::runtime_error);
    EXPECT_TRUE(same_bits(random, at::globalContext().defaultGenerator(at::kCPU).get_state()));
    EXPECT_TRUE(at::GradMode::is_enabled());
    // The graph is still good.
    EXPECT_NO_THROW(torch::autograd::grad({y}, {x}));
  }
  EXPECT_EQ(testing::cpu().stats().allocated, before);
}

TEST(RerunCheckpoint, IsAPlainCallWithoutGradients) {
  auto calls = std::make_shared<int>(0);
  const torch::NoGradGuard no_grad;
  const at::Tensor x = torch::randn({4}, at::requires_grad());
  EXPECT_FALSE(checkpoint(
                   kRerun, [calls](const at::Tensor& t) { return ++*calls, t.sin(); }, x)
                   .requires_grad());
  EXPECT_EQ(*calls, 1);
}

TEST(RerunCheckpoint, RunsWhatComputesOutsideOfAten) {
  // A buffer that a loop of its own fills: opaque to a recorder, but the function can be called again.
  const at::Tensor x = torch::randn({1 << 16}, at::requires_grad());
  const auto raw = [](const at::Tensor& t) {
    at::Tensor factors = torch::empty({t.numel()});
    float* to = factors.mutable_data_ptr<float>();
    for (std::int64_t k = 0; k < t.numel(); ++k) to[k] = static_cast<float>(k % 7);
    return t * factors;
  };
  const at::Tensor plain = torch::autograd::grad({raw(x).sum()}, {x})[0];
  const Bytes before = testing::cpu().stats().allocated;
  const at::Tensor y = checkpoint(kWithoutRandomState, raw, x);
  EXPECT_LE(testing::cpu().stats().allocated - before, static_cast<Bytes>(y.nbytes()) + 4_KiB);
  EXPECT_TRUE(same_bits(plain, torch::autograd::grad({y.sum()}, {x})[0]));
}

}  // namespace
}  // namespace snug
