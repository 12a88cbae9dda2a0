#include "snug/ops/rms_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <utility>
#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/replay/region.h"
#include "tests/equivalence/bitwise.h"

namespace snug::ops {
namespace {

using snug::testing::same_bits;

struct NormInputs {
  at::Tensor x, delta, weight;

  [[nodiscard]] NormInputs leaves() const {
    const auto leaf = [](const at::Tensor& t) { return t.defined() ? t.clone().requires_grad_() : t; };
    return {leaf(x), leaf(delta), leaf(weight)};
  }
};

NormInputs norm_inputs(std::int64_t rows, std::int64_t width, at::ScalarType type, bool has_weight,
                       at::ScalarType delta = at::kFloat) {
  torch::manual_seed(rows + width);
  return {(torch::randn({2, rows, width}) * 3).to(type), torch::randn({2, rows, width}).to(delta),
          has_weight ? torch::rand({width}).to(type) : at::Tensor()};
}

constexpr double kEpsilon = 1e-5;

at::Tensor libtorch(const at::Tensor& x, const at::Tensor& weight) {
  const std::optional<at::Tensor> given = weight.defined() ? std::optional(weight) : std::nullopt;
  return at::rms_norm(x, x.sizes().slice(2), given, kEpsilon);
}

/// What backward makes of all of them, and the results.
std::vector<at::Tensor> all_of(const NormInputs& leaves, const std::vector<at::Tensor>& results) {
  torch::manual_seed(1);
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& y : results) gradients.push_back(torch::randn(y.sizes()).to(y.scalar_type()));
  torch::autograd::backward(results, gradients);
  std::vector<at::Tensor> all;
  for (const at::Tensor& y : results) all.push_back(y.detach());
  for (const at::Tensor& t : {leaves.x, leaves.delta, leaves.weight}) {
    if (t.defined() && t.grad().defined()) all.push_back(t.grad());
  }
  return all;
}

void expect_same_bits(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(same_bits(found[i], expected[i]))
        << "tensor " << i << " differs by " << (found[i] - expected[i]).abs().max().item<double>();
  }
}

// The longest have sums of several levels; 1 row and 7 columns have no kernel; 4,099 has a rest behind the vectors.
constexpr std::pair<std::int64_t, std::int64_t> kShapes[] = {{64, 576}, {1, 384}, {3, 7},    {5, 100},
                                                             {2, 4099}, {1, 8},   {300, 64}, {2, 40000}};

TEST(RmsNorm, HasTheBitsOfLibTorchs) {
  const int threads_before = at::get_num_threads();
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      for (const auto& [rows, width] : kShapes) {
        for (const bool has_weight : {true, false}) {
          SCOPED_TRACE(::testing::Message()
                       << threads << " threads, " << type << ", " << rows << "x" << width << ", weight " << has_weight);
          const NormInputs in = norm_inputs(rows, width, type, has_weight), a = in.leaves(), b = in.leaves();
          expect_same_bits(all_of(a, {rms_norm(a.x, a.weight, kEpsilon)}), all_of(b, {libtorch(b.x, b.weight)}));
        }
      }
    }
  }
  at::set_num_threads(threads_before);
}

TEST(RmsNorm, OfAStreamHasTheBitsOfAllOperatorsTogether) {
  for (const auto& [type, delta] : {std::pair{at::kFloat, at::kFloat}, std::pair{at::kFloat, at::kBFloat16},
                                    std::pair{at::kFloat, at::kHalf}, std::pair{at::kBFloat16, at::kBFloat16},
                                    std::pair{at::kBFloat16, at::kFloat}, std::pair{at::kDouble, at::kDouble}}) {
    for (const auto& [rows, width] : kShapes) {
      SCOPED_TRACE(::testing::Message() << type << " and " << delta << ", " << rows << "x" << width);
      const NormInputs in = norm_inputs(rows, width, type, true, delta);
      for (const bool adds : {true, false}) {
        const auto stream = [&](const NormInputs& i) { return adds ? i.x + i.delta : i.x * 1; };
        const auto norm = [&](const NormInputs& i) {
          return rms_norm_of_stream(adds ? i.x : i.x * 1, adds ? i.delta : at::Tensor(), i.weight, kEpsilon);
        };
        const NormInputs a = in.leaves(), b = in.leaves();
        const auto [found, normalized] = norm(a);
        const at::Tensor plain = stream(b), expected = libtorch(plain, b.weight);
        expect_same_bits(all_of(a, {normalized, found}), all_of(b, {expected, plain}));
        // As in a block: what is normalized comes back to the stream.
        const NormInputs e = in.leaves(), f = in.leaves();
        const auto block = norm(e);
        const at::Tensor other_stream = stream(f), other = libtorch(other_stream, f.weight);
        expect_same_bits(all_of(e, {block.stream + block.normalized.sin()}), all_of(f, {other_stream + other.sin()}));
        // With one of the two alone.
        for (const bool of_stream : {true, false}) {
          const NormInputs c = in.leaves(), d = in.leaves();
          const auto both = norm(c);
          const at::Tensor only = stream(d);
          expect_same_bits(all_of(c, {of_stream ? both.stream : both.normalized}),
                           all_of(d, {of_stream ? only : libtorch(only, d.weight)}));
        }
      }
    }
  }
}

TEST(RmsNorm, KeepsItsInputAndANumberARow) {
  const NormInputs leaves = norm_inputs(256, 512, at::kFloat, true).leaves();
  auto& memory = memory::device_memory(c10::kCPU);
  const Bytes x_bytes = leaves.x.nbytes();
  const auto kept = [&](const auto& norm) {
    const Bytes before = memory.stats().allocated;
    const at::Tensor y = norm();
    return memory.stats().allocated - before - y.nbytes();
  };
  EXPECT_LT(kept([&] { return rms_norm(leaves.x, leaves.weight, kEpsilon); }), x_bytes / 64);
  EXPECT_GE(kept([&] { return libtorch(leaves.x, leaves.weight); }), x_bytes) << "what it is compared with";
}

TEST(RmsNorm, IsMadeAgainBitForBit) {
  const NormInputs in = norm_inputs(64, 96, at::kFloat, true), a = in.leaves(), b = in.leaves();
  at::Tensor y;
  {
    const Region region(Recompute{});
    y = rms_norm(a.x * 2, a.weight, kEpsilon).sin();
  }
  expect_same_bits(all_of(a, {y}), all_of(b, {libtorch(b.x * 2, b.weight).sin()}));
}

TEST(RmsNorm, IsDifferentiatedTwice) {
  const NormInputs in = norm_inputs(3, 16, at::kDouble, true), a = in.leaves(), b = in.leaves();
  const auto second = [](const NormInputs& leaves, const at::Tensor& y) {
    const auto first = torch::autograd::grad({y.pow(3).sum()}, {leaves.x, leaves.weight}, {}, true, true);
    (first[0].pow(2).sum() + first[1].sin().sum()).backward();
    return std::vector{leaves.x.grad(), leaves.weight.grad()};
  };
  const auto found = second(a, rms_norm(a.x, a.weight, kEpsilon)), expected = second(b, libtorch(b.x, b.weight));
  for (std::size_t i = 0; i < found.size(); ++i) {
    // The first derivatives are added up in another order than where LibTorch differentiates its own.
    EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-12, 1e-12)) << i;
  }
}

TEST(RmsNorm, TakesWeightsThatDoNotTrainAndInputsThatAreNotContiguous) {
  const NormInputs in = norm_inputs(64, 96, at::kFloat, true);
  NormInputs a = in.leaves(), b = in.leaves();
  a.weight.requires_grad_(false);
  b.weight.requires_grad_(false);
  expect_same_bits(all_of(a, {rms_norm(a.x.transpose(0, 1), a.weight, kEpsilon)}),
                   all_of(b, {libtorch(b.x.transpose(0, 1), b.weight)}));
  EXPECT_FALSE(a.weight.grad().defined());
}

TEST(RmsNorm, TakesGradientsInAnyLayout) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const bool streams : {false, true}) {
      SCOPED_TRACE(::testing::Message() << type << ", of a stream " << streams);
      const NormInputs in = norm_inputs(33, 64, type, true), a = in.leaves(), b = in.leaves();
      const auto turned = [](const at::Tensor& y) { return y.transpose(0, 2).contiguous().sin(); };
      const auto both = [&](const at::Tensor& stream, const at::Tensor& y) {
        return streams ? turned(y) + turned(stream) : turned(y);
      };
      const auto found = rms_norm_of_stream(a.x, {}, a.weight, kEpsilon);
      const at::Tensor expected = libtorch(b.x, b.weight);
      if (streams) {
        expect_same_bits(all_of(a, {both(found.stream, found.normalized)}), all_of(b, {both(b.x, expected)}));
      } else {
        expect_same_bits(all_of(a, {turned(rms_norm(a.x, a.weight, kEpsilon))}), all_of(b, {turned(expected)}));
      }
    }
  }
}

TEST(RmsNorm, IsDifferentiatedTwiceWhateverTrains) {
  for (const bool of_x : {true, false}) {
    const auto second = [&](const auto& norm) {
      torch::manual_seed(0);
      const at::Tensor x = torch::randn({4, 16}, at::kDouble).requires_grad_(of_x);
      const at::Tensor weight = torch::rand({16}, at::kDouble).requires_grad_(!of_x);
      const at::Tensor& leaf = of_x ? x : weight;
      const auto first = torch::autograd::grad({norm(x, weight).pow(3).sum()}, {leaf}, {}, true, true);
      first[0].pow(2).sum().backward();
      return leaf.grad();
    };
    const at::Tensor found = second([](const auto& x, const auto& w) { return rms_norm(x, w, kEpsilon); });
    const at::Tensor expected = second([](const auto& x, const auto& w) { return at::rms_norm(x, {16}, w, kEpsilon); });
    EXPECT_TRUE(torch::allclose(found, expected, 1e-12, 1e-12)) << of_x;
  }
}

TEST(RmsNorm, HasKernelsWithTheBitsOfThisLibTorch) {
  // If not, what is compared above is LibTorch with itself.
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const NormInputs leaves = norm_inputs(8, 64, type, true).leaves();
    EXPECT_THAT(rms_norm(leaves.x, leaves.weight, kEpsilon).grad_fn()->name(), ::testing::HasSubstr("RmsNorm")) << type;
  }
}

TEST(RmsNorm, TakesNumbersThatAreLargeOrMissing) {
  at::Tensor x = torch::randn({1, 8, 64});
  x[0][0][3] = std::numeric_limits<float>::infinity();
  x[0][1][3] = std::numeric_limits<float>::quiet_NaN();
  x[0][2][3] = 1e30F;
  x[0][3].zero_();
  const at::Tensor weight = torch::ones({64});
  EXPECT_TRUE(
      torch::allclose(rms_norm(x, weight, 0), libtorch(x, weight) * 0 + at::rms_norm(x, {64}, weight, 0), 0, 0, true));
}

}  // namespace
}  // namespace snug::ops
