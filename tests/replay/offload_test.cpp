// Regions that move what autograd saves out of memory.
#include <gtest/gtest.h>

#include <cstdlib>

#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace snug {
namespace {

using testing::same_bits;

constexpr std::int64_t kSide = 512;
constexpr Bytes kMatrix = kSide * kSide * 4;

class OffloadRegion : public ::testing::Test {
 protected:
  OffloadRegion() {
    torch::manual_seed(3);
    w = torch::randn({kSide, kSide}, at::requires_grad());
    x = torch::randn({kSide, kSide}, at::requires_grad());
  }
  static Bytes live() { return testing::test_memory().stats().allocated; }
  /// sin and exp save their results or inputs; mm its inputs.
  at::Tensor chain() const { return torch::dropout(x.sin().mm(w).exp(), 0.3, true).mm(w).tanh(); }
  std::vector<at::Tensor> gradients(const at::Tensor& y) const { return torch::autograd::grad({y.sum()}, {x, w}); }
  std::vector<at::Tensor> plain_gradients() const {
    torch::manual_seed(9);
    return gradients(chain());
  }
  void expect_plain(const std::vector<at::Tensor>& found) const {
    const auto plain = plain_gradients();
    for (std::size_t k = 0; k < plain.size(); ++k) EXPECT_TRUE(same_bits(plain[k], found[k])) << k;
  }
  at::Tensor w, x;
};

TEST_F(OffloadRegion, MovesWhatIsSavedAndBringsItBack) {
  const Bytes before = live();
  std::vector<at::Tensor> found;
  {
    torch::manual_seed(9);
    at::Tensor y;
    std::optional<Region> region(Offload{});
    y = chain();
    // sin(x), exp, what dropout makes, and tanh, which is the result: its memory stays with the program.
    EXPECT_GE(region->offloaded_bytes(), 4 * kMatrix);
    region.reset();
    EXPECT_LT(live() - before, 2 * kMatrix);
    found = gradients(y);
  }
  expect_plain(found);
  found.clear();
  EXPECT_EQ(live(), before);
}

TEST_F(OffloadRegion, MovesAStorageOnceHoweverManyViewsAreSaved) {
  Region region(Offload{});
  const at::Tensor y = x * 2;
  const at::Tensor sum = (y.t() * w).sum() + (y.narrow(0, 0, 7) * w.narrow(0, 0, 7)).sum() + y.sin().sum();
  EXPECT_EQ(region.offloaded_bytes(), kMatrix);
  sum.backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST_F(OffloadRegion, LeavesSmallStoragesAlone) {
  Region region(Offload{.min_bytes = kMatrix + 1});
  chain();
  EXPECT_EQ(region.offloaded_bytes(), 0);
}

TEST_F(OffloadRegion, IsAChoiceOfAPolicyAndReplaysReadWhatItMoved) {
  torch::manual_seed(9);
  Region region(
      [](const OperatorContext& op) { return op.name == "aten::mm" ? Choice::Offload : Choice::PreferRecompute; });
  const auto found = gradients(chain());
  EXPECT_EQ(region.offloaded_bytes(), 0) << "nothing saves a product as it is";
  EXPECT_GT(region.replayed_ops(), 3);
  expect_plain(found);

  torch::manual_seed(9);
  Region other(
      [](const OperatorContext& op) { return op.name == "aten::sin" ? Choice::Offload : Choice::PreferRecompute; });
  const at::Tensor y = chain();
  EXPECT_EQ(other.offloaded_bytes(), kMatrix);
  expect_plain(gradients(y));
  EXPECT_GT(other.replayed_ops(), 2);
}

TEST_F(OffloadRegion, WhatARecomputedRegionReadsCanBeElsewhere) {
  torch::manual_seed(9);
  Region outer(Offload{});
  at::Tensor hidden = x.sin().mm(w);
  {
    Region inner(Recompute{});
    hidden = torch::dropout(hidden.exp(), 0.3, true);
  }
  const at::Tensor y = hidden.mm(w).tanh();
  hidden = at::Tensor();
  expect_plain(gradients(y));
  EXPECT_GE(outer.replayed_ops(), 2);
}

TEST_F(OffloadRegion, ComesBackAsOftenAsItIsAskedFor) {
  torch::manual_seed(9);
  const Region region(Offload{});
  const at::Tensor y = chain().sum();
  for (int pass = 0; pass < 3; ++pass) expect_plain(torch::autograd::grad({y}, {x, w}, {}, /*retain_graph=*/true));
}

TEST_F(OffloadRegion, IsAnOptionOfACheckpoint) {
  torch::manual_seed(9);
  const CheckpointOptions options{.mode = Replay{.region = Offload{}}};
  expect_plain(gradients(checkpoint(options, [&] { return chain(); })));
}

TEST_F(OffloadRegion, WithoutAFileItKeepsTheValuesAndSaysSo) {
  SNUG_ONLY_ON_THE_CPU("a file that values move to");
  const char* before = std::getenv("TMPDIR");
  const std::string folder = before != nullptr ? before : "";
  ::setenv("TMPDIR", "/no/such/folder", 1);
  torch::manual_seed(9);
  Region region(Offload{});
  at::Tensor y = x.sin();
  std::string text;
  try {
    y = y.mm(w);  // saves sin(x)
    y = y + 1;    // the next operator
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_NE(text.find("/no/such/folder"), std::string::npos) << text;
  before != nullptr ? ::setenv("TMPDIR", folder.c_str(), 1) : ::unsetenv("TMPDIR");
  EXPECT_EQ(region.offloaded_bytes(), 0);
  EXPECT_NO_THROW(y.sum().backward());
  EXPECT_TRUE(x.grad().defined());
}

/// The write is recorded by the inner region's tape, which the outer one does not see.
TEST_F(OffloadRegion, KnowsOfWritesThatAnotherTapeRecords) {
  const auto gradient = [&](std::optional<RegionAction> action) {
    std::optional<Region> outer;
    if (action) outer.emplace(*action);
    const at::Tensor doubled = x * 2;
    const auto relu = [](at::Tensor t) {
      std::optional<Region> inner;
      inner.emplace(Recompute{});
      return t.relu_();
    };
    const at::Tensor y = action ? checkpoint({.mode = Rerun{}}, relu, doubled) : relu(doubled);
    const at::Tensor u = y * w;
    return torch::autograd::grad({u.sum()}, {w})[0];
  };
  EXPECT_TRUE(same_bits(gradient(std::nullopt), gradient(Offload{.min_bytes = 0})));
  EXPECT_TRUE(same_bits(gradient(std::nullopt), gradient(Recompute{})));
}

TEST_F(OffloadRegion, LeavesASessionToItsPlan) {
  const auto step = [&] {
    const Region region(Offload{});
    const at::Tensor loss = chain().sum();
    EXPECT_EQ(region.offloaded_bytes(), 0);
    return loss;
  };
  Session session(replay::record_step(step, testing::test_memory()), "optimal", std::nullopt, testing::test_memory());
  session.backward(step);
  EXPECT_TRUE(session.last_step().followed_plan);
}

TEST(Offload, PartsOfAResultMayBeWrittenWhileOthersAreSaved) {
  // As a GRU's gates are: parts with versions of their own, each written in place.
  const at::Tensor x = torch::randn({2, 4}), weight = torch::randn({4, 9}, torch::requires_grad());
  const auto gates = [&] {
    const auto parts = x.mm(weight).unsafe_chunk(3, 1);
    const at::Tensor reset = parts[0].add_(1).sigmoid_(), update = parts[1].add_(1).sigmoid_();
    return (reset * update + parts[2].mul_(reset).tanh_()).square().sum();
  };
  gates().backward();
  const at::Tensor plain = weight.grad().clone();
  weight.mutable_grad() = at::Tensor();
  std::optional<Region> region;
  region.emplace(snug::Offload{.min_bytes = 1});
  const at::Tensor loss = gates();
  EXPECT_GT(region->offloaded_bytes(), 0);
  region.reset();
  loss.backward();
  EXPECT_TRUE(testing::same_bits(weight.grad(), plain));
}

}  // namespace
}  // namespace snug
