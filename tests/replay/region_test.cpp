// The contract of Region and checkpoint: what is dropped, what is kept, what is replayed, and when memory comes back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "snug/base/module_scope.h"
#include "snug/record/leaf_names.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace snug {
namespace {

using ::testing::HasSubstr;
using testing::same_bits;

Bytes allocated() { return testing::test_memory().stats().allocated; }

/// A chain of squares: y = x^2, four times. Each saves its input.
at::Tensor squares(at::Tensor x, int times = 4) {
  for (int i = 0; i < times; ++i) x = x * x;
  return x;
}

at::Tensor leaf(at::IntArrayRef sizes, int seed = 0) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  return torch::rand(sizes).requires_grad_();
}

TEST(Region, DropsWhatAutogradSavesAndKeepsTheResult) {
  const at::Tensor x = leaf({256, 1024});
  const Bytes tensor = testing::test_memory().rounded(256 * 1024 * 4);
  const Bytes before = allocated();
  at::Tensor plain = squares(x);
  EXPECT_EQ(allocated() - before, 4 * tensor);
  plain = at::Tensor();
  ASSERT_EQ(allocated(), before);
  at::Tensor y;
  {
    const Region region(Recompute{});
    y = squares(x);
  }
  EXPECT_EQ(allocated() - before, tensor) << "only the result lives";
  y.sum().backward();
  y = at::Tensor();
  EXPECT_EQ(allocated() - before, tensor) << "only the gradient lives";
}

TEST(Region, KeepHoldsWhatAutogradSaves) {
  const at::Tensor x = leaf({64, 64});
  const Region region(Keep{});
  const at::Tensor y = squares(x);
  y.sum().backward();
  EXPECT_EQ(region.replayed_ops(), 0);
}

TEST(Region, WhatTheProgramStillHasIsNotRecomputed) {
  const at::Tensor x = leaf({64, 64});
  const auto replayed = [&](bool has_it) {
    Region region(Recompute{});
    at::Tensor square = squares(x, 2);
    const at::Tensor y = squares(square, 1);
    if (!has_it) square = at::Tensor();
    x.mutable_grad() = at::Tensor();
    y.sum().backward();
    return region.replayed_ops();
  };
  EXPECT_EQ(replayed(false), 2);
  const at::Tensor gradient = x.grad();
  EXPECT_EQ(replayed(true), 1) << "the first square, which nobody has";
  EXPECT_TRUE(same_bits(x.grad(), gradient));
}

TEST(Region, ReplaysOnlyWhatIsNeededAndEachOperatorOnce) {
  const at::Tensor x = leaf({64, 64});
  Region region(Recompute{});
  const at::Tensor y = squares(x);
  y.sum().backward();
  EXPECT_EQ(region.replayed_ops(), 3) << "the fourth square is the result: nothing saved depends on it";
}

TEST(Region, InnermostWins) {
  const at::Tensor x = leaf({64, 64});
  Region outer(Recompute{});
  at::Tensor y = squares(x, 2);
  {
    const Region inner(Keep{});
    y = squares(y, 2);
  }
  y.sum().backward();
  EXPECT_EQ(outer.replayed_ops(), 2) << "the kept region needs no replay, its input does";
}

TEST(Region, NestedRegionsAreReplayedFromTheirOwnInputs) {
  const at::Tensor x = leaf({64, 64});
  const at::Tensor expected = [&] {
    squares(x, 6).sum().backward();
    return std::exchange(x.mutable_grad(), at::Tensor());
  }();
  {
    Region outer(Recompute{});
    at::Tensor y = squares(x, 2);
    {
      const Region inner(Recompute{});
      y = squares(y, 2);
    }
    y = squares(y, 2);
    y.sum().backward();
  }
  EXPECT_TRUE(same_bits(expected, x.grad()));
}

TEST(Region, MemoryFallsWithEveryStepOfBackward) {
  // The values of the region come back one after the other, and leave as soon as their node is done.
  const at::Tensor x = leaf({256, 1024});
  auto& memory = testing::test_memory();
  const Bytes tensor = memory.rounded(256 * 1024 * 4);
  at::Tensor y = checkpoint([](const at::Tensor& t) { return squares(t, 8); }, x);
  const Bytes before = allocated();
  memory.reset_peak();
  y.sum().backward();
  // Seven squares made again, two gradients on their way, and one product.
  EXPECT_LE(memory.stats().allocated_peak - before, 11 * tensor);
}

TEST(Region, BackwardTwiceWithRetainGraph) {
  const at::Tensor x = leaf({64, 64});
  at::Tensor y = checkpoint([](const at::Tensor& t) { return squares(t).sum(); }, x);
  y.backward({}, /*retain_graph=*/true);
  const at::Tensor once = x.grad().clone();
  y.backward();
  EXPECT_TRUE(same_bits(x.grad(), once * 2));
}

TEST(Region, TwoLossesShareOneForward) {
  const at::Tensor x = leaf({64, 64});
  const auto gradients = [&](bool drops) {
    std::optional<Region> region;
    if (drops) region.emplace(Recompute{});
    const at::Tensor shared = squares(x, 3);
    const at::Tensor a = shared.sin().sum(), b = shared.exp().mean();
    region.reset();
    x.mutable_grad() = at::Tensor();
    a.backward({}, true);
    b.backward();
    return x.grad().clone();
  };
  EXPECT_TRUE(same_bits(gradients(false), gradients(true)));
}

TEST(Region, SeveralTapesAreAliveAtOnce) {
  const at::Tensor x = leaf({64, 64});
  const auto block = [](const at::Tensor& t) { return squares(t, 2).sin(); };
  squares(block(block(block(x))), 1).sum().backward();
  const at::Tensor expected = std::exchange(x.mutable_grad(), at::Tensor());
  const at::Tensor a = checkpoint(block, x);
  const at::Tensor b = checkpoint(block, a);
  const at::Tensor c = checkpoint(block, b);
  squares(c, 1).sum().backward();
  EXPECT_TRUE(same_bits(expected, x.grad()));
}

TEST(Region, BackwardOnAnotherThread) {
  const at::Tensor x = leaf({64, 64});
  squares(x).sum().backward();
  const at::Tensor expected = std::exchange(x.mutable_grad(), at::Tensor());
  const at::Tensor y = checkpoint([](const at::Tensor& t) { return squares(t).sum(); }, x);
  std::thread([&] { y.backward(); }).join();
  EXPECT_TRUE(same_bits(expected, x.grad()));
}

TEST(Region, OperatorsOfOtherThreadsMakeOpaqueValues) {
  const at::Tensor x = leaf({64, 64});
  const auto forward = [&] {
    at::Tensor other;
    std::thread([&] {
      const torch::NoGradGuard no_grad;
      other = x * 3;
    }).join();
    return (squares(x) * other).sum();
  };
  forward().backward();
  const at::Tensor expected = std::exchange(x.mutable_grad(), at::Tensor());
  checkpoint(forward).backward();
  EXPECT_TRUE(same_bits(expected, x.grad()));
}

TEST(Region, AKeptResultChangedAfterwardsIsRecomputed) {
  const at::Tensor x = leaf({4, 4});
  const auto gradient = [&](bool in_region) {
    std::optional<Region> region;
    if (in_region) region.emplace(Selective{.keep = {"aten::mm"}});
    at::Tensor h = x.mm(x);
    const at::Tensor u = (h + 1).sin();
    if (region) region->close();
    h.mul_(2);  // plain autograd did not save it, but the replay of h + 1 reads it
    const at::Tensor result = torch::autograd::grad({u.sum() + h.sum()}, {x})[0];
    EXPECT_TRUE(!region || region->replayed_ops() == 2) << "the product, too";
    return result;
  };
  EXPECT_TRUE(same_bits(gradient(false), gradient(true)));
}

TEST(Region, WhatALoopFilledChangedAfterwardsIsAnError) {
  const at::Tensor x = leaf({4});
  at::Tensor factors = torch::empty({4}), y;
  {
    const Region region(Recompute{});
    factors = torch::empty({4});
    std::fill_n(factors.mutable_data_ptr<float>(), 4, 2.0F);
    y = x * (factors + 1);
  }
  factors.mul_(2);
  EXPECT_THROW(y.sum().backward(), Error);
}

TEST(Region, APolicyThatThrowsLeavesTheTapeWhole) {
  const at::Tensor x = leaf({4, 4});
  const Region outer(Recompute{});
  const at::Tensor before = x.sin().exp();
  {
    const Region inner(SelectivePolicy([](const OperatorContext&) -> Choice { throw std::runtime_error("no idea"); }));
    EXPECT_THROW(before.cos(), std::runtime_error);
  }
  const at::Tensor after = before.tanh().sin();
  EXPECT_TRUE(same_bits(torch::autograd::grad({after.sum()}, {x})[0],
                        torch::autograd::grad({x.sin().exp().tanh().sin().sum()}, {x})[0]));
}

TEST(Region, SaysWhatItKeepsBecauseALoopFilledIt) {
  const at::Tensor x = torch::randn({1024}, at::requires_grad());
  const Region region(Recompute{});
  const ModuleScope scope("mask");
  at::Tensor factors = torch::empty({1024});
  std::fill_n(factors.mutable_data_ptr<float>(), 1024, 2.0F);
  const at::Tensor y = (x * factors).sin();
  y.sum().backward();
  const auto lines = region.opaque_values();
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].find("4.0 KiB of aten::empty.memory_format (operator 0 in mask) is kept"), 0U) << lines[0];
  EXPECT_NE(lines[0].find("TORCH_LIBRARY"), std::string::npos);
}

TEST(Region, DoesNothingWithoutGradients) {
  const at::Tensor x = leaf({64, 64});
  const torch::NoGradGuard no_grad;
  Region region(Recompute{});
  EXPECT_FALSE(squares(x).requires_grad());
  EXPECT_EQ(region.replayed_ops(), 0);
}

TEST(Region, AnExceptionLeavesNoTrace) {
  const at::Tensor x = leaf({64, 64});
  const Bytes before = allocated();
  EXPECT_THROW(checkpoint([&]() -> at::Tensor {
                 at::Tensor y = squares(x);
                 throw std::runtime_error("the user's own");
               }),
               std::runtime_error);
  EXPECT_EQ(allocated(), before);
  EXPECT_THROW(checkpoint([&] { return at::mm(squares(x), at::ones({3, 3})); }), c10::Error);
  EXPECT_EQ(allocated(), before);
  const at::Tensor y = squares(x).sum();  // records nothing: the region is closed
  y.backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST(Region, AWeightChangedBeforeBackwardIsAnErrorThatNamesIt) {
  const at::Tensor w = leaf({64, 64}), x = leaf({8, 64}, 1);
  record::name_tensors({{"decoder.weight", w}});
  const at::Tensor loss = checkpoint([&] { return at::mm(at::mm(x, w).tanh(), w).tanh().sum(); });
  {
    const torch::NoGradGuard no_grad;
    w.add_(1.0);
  }
  try {
    loss.backward();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("decoder.weight"));
    EXPECT_THAT(error.what(), HasSubstr("modified in place"));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

TEST(Region, AnInputChangedThatOnlyReplayReadsIsAnErrorThatNamesTheOperator) {
  const at::Tensor w = leaf({64, 64});
  at::Tensor offset = torch::ones({64, 64});
  record::name_tensors({{"offset", offset}});
  const at::Tensor loss = checkpoint([&] { return squares(w + offset).sum(); });
  offset.mul_(2.0);
  try {
    loss.backward();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("aten::add"));
    EXPECT_THAT(error.what(), HasSubstr("offset"));
  }
}

TEST(CheckpointSequential, EqualsThePlainRunAndLeavesTheLastSegmentAlone) {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(32, 32), torch::nn::Tanh(), torch::nn::Linear(32, 32), torch::nn::Tanh(),
                            torch::nn::Linear(32, 32), torch::nn::Tanh());
  const at::Tensor x = leaf({16, 32});
  net->forward(x).sum().backward();
  const at::Tensor expected = net[0]->as<torch::nn::Linear>()->weight.grad().clone();
  for (const std::int64_t segments : {1, 2, 3, 6}) {
    net->zero_grad();
    checkpoint_sequential(*net, segments, x).sum().backward();
    EXPECT_TRUE(same_bits(expected, net[0]->as<torch::nn::Linear>()->weight.grad())) << segments;
  }
  std::vector<std::function<at::Tensor(at::Tensor)>> functions(4, [](at::Tensor t) { return t.sin(); });
  EXPECT_TRUE(same_bits(checkpoint_sequential(functions, 2, x.detach()), x.detach().sin().sin().sin().sin()));
}

TEST(CheckpointSequential, SegmentsHaveThePyTorchLengths) {
  using Ranges = std::vector<std::pair<std::size_t, std::size_t>>;
  EXPECT_EQ(replay::sequential_segments(10, 2), (Ranges{{0, 5}, {5, 10}}));
  EXPECT_EQ(replay::sequential_segments(7, 3), (Ranges{{0, 2}, {2, 4}, {4, 7}}));
  EXPECT_THROW(replay::sequential_segments(3, 4), UsageError);
  EXPECT_THROW(replay::sequential_segments(3, 0), UsageError);
}

}  // namespace
}  // namespace snug
