#include "snug/ops/rotary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/replay/region.h"
#include "tests/equivalence/bitwise.h"

namespace snug::ops {
namespace {

using snug::testing::same_bits;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

at::Tensor as_operators(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines) {
  const auto halves = x.chunk(2, -1);
  return x * cosines + at::cat({-halves[1], halves[0]}, -1) * sines;
}

struct Turned {
  at::Tensor x, cosines, sines;
};

Turned turned(std::int64_t width, at::ScalarType type, at::ScalarType of_table, bool by_batch) {
  torch::manual_seed(width);
  const auto sizes = by_batch ? std::vector<std::int64_t>{2, 1, 37, width} : std::vector<std::int64_t>{37, width};
  return {torch::randn({2, 3, 37, width}).to(type), torch::randn(sizes).to(of_table), torch::randn(sizes).to(of_table)};
}

/// The result and x's gradient; `heads_last`: as views of a projection are.
template <class Rotate>
std::pair<at::Tensor, at::Tensor> both_ways(const Turned& in, bool heads_last, const Rotate& rotate) {
  const at::Tensor x = in.x.clone().requires_grad_();
  const at::Tensor heads = heads_last ? x.transpose(1, 2).contiguous().transpose(1, 2) : x;
  const at::Tensor y = rotate(heads, in.cosines, in.sines);
  torch::manual_seed(1);
  y.backward(torch::randn(y.sizes()).to(y.scalar_type()));
  return {y.detach(), x.grad()};
}

TEST(Rotary, HasTheBitsOfOneOperatorAfterTheOther) {
  const std::pair<at::ScalarType, at::ScalarType> types[] = {
      {at::kFloat, at::kFloat}, {at::kDouble, at::kDouble},     {at::kBFloat16, at::kFloat},
      {at::kHalf, at::kFloat},  {at::kBFloat16, at::kBFloat16}, {at::kFloat, at::kBFloat16}};
  for (const auto& [type, of_table] : types) {
    for (const std::int64_t width : {64, 2, 6, 80, 128}) {
      for (const bool by_batch : {false, true}) {
        for (const bool heads_last : {false, true}) {
          SCOPED_TRACE(::testing::Message() << type << " by " << of_table << ", width " << width << ", tables by batch "
                                            << by_batch << ", heads last " << heads_last);
          const Turned in = turned(width, type, of_table, by_batch);
          const auto [y, of_x] = both_ways(in, heads_last, rotate);
          const auto [expected_y, expected_of_x] = both_ways(in, heads_last, as_operators);
          EXPECT_EQ(y.scalar_type(), expected_y.scalar_type());
          EXPECT_TRUE(same_bits(y, expected_y));
          EXPECT_TRUE(same_bits(of_x, expected_of_x));
          EXPECT_EQ(y.strides(), expected_y.strides());
        }
      }
    }
  }
}

TEST(Rotary, HasAKernelForEveryType) {
  for (const auto& [type, of_table] : {std::pair{at::kFloat, at::kFloat}, std::pair{at::kDouble, at::kDouble},
                                       std::pair{at::kBFloat16, at::kFloat}, std::pair{at::kHalf, at::kHalf}}) {
    const Turned in = turned(64, type, of_table, false);
    EXPECT_THAT(rotate(in.x.clone().requires_grad_(), in.cosines, in.sines).grad_fn()->name(), HasSubstr("Rotate"));
  }
}

TEST(Rotary, KeepsNothingOfItsInput) {
  const Turned in = turned(64, at::kFloat, at::kFloat, false);
  auto& memory = memory::device_memory(c10::kCPU);
  at::Tensor x = in.x.clone().requires_grad_();
  const Bytes before = memory.stats().allocated;
  at::Tensor turned_twice;
  {
    const at::Tensor y = rotate(x * 1, in.cosines, in.sines);
    turned_twice = rotate(y, in.cosines, in.sines);
  }
  EXPECT_LT(memory.stats().allocated - before, 3 * static_cast<Bytes>(x.nbytes()) / 2) << "the last result alone";
}

TEST(Rotary, IsMadeAgainBitForBit) {
  const Turned in = turned(64, at::kBFloat16, at::kFloat, false);
  const auto through = [&](bool again) {
    const at::Tensor x = in.x.clone().requires_grad_();
    at::Tensor y;
    if (again) {
      const Region region(Recompute{});
      y = rotate(x, in.cosines, in.sines).sin();
    } else {
      y = as_operators(x, in.cosines, in.sines).sin();
    }
    y.sum().backward();
    return x.grad();
  };
  EXPECT_TRUE(same_bits(through(true), through(false)));
}

TEST(Rotary, IsDifferentiatedTwice) {
  const Turned in = turned(6, at::kDouble, at::kDouble, false);
  const auto second = [&](const auto& way) {
    const at::Tensor x = in.x.clone().requires_grad_();
    const auto first = torch::autograd::grad({way(x, in.cosines, in.sines).pow(3).sum()}, {x}, {}, true, true);
    first[0].pow(2).sum().backward();
    return x.grad();
  };
  EXPECT_TRUE(torch::allclose(second(rotate), second(as_operators), 1e-12, 1e-12));
}

TEST(Rotary, NamesShapesThatDoNotGoTogether) {
  const at::Tensor x = torch::randn({2, 3, 5, 8}), odd = torch::randn({2, 3, 5, 7});
  EXPECT_THAT(
      [&] {
        rotate(x, torch::ones({4, 8}), torch::ones({4, 8}));
      },
      ThrowsMessage<Error>(HasSubstr("heads of shape 2x3x5x8, cosines 4x8")));
  EXPECT_THAT(
      [&] {
        rotate(odd, torch::ones({5, 7}), torch::ones({5, 7}));
      },
      ThrowsMessage<Error>(HasSubstr("of an even width")));
}

}  // namespace
}  // namespace snug::ops
