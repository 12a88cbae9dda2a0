#include "snug/ops/activated_linear.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/models/autocast.h"
#include "snug/ops/activated.h"
#include "snug/replay/region.h"
#include "tests/equivalence/bitwise.h"

namespace snug::ops {
namespace {

using snug::testing::same_bits;

constexpr Activation kAll[] = {Activation::Gelu, Activation::GeluTanh, Activation::Silu};

struct LinearInputs {
  at::Tensor x, factor, weight, bias;

  [[nodiscard]] LinearInputs leaves() const {
    const auto leaf = [](const at::Tensor& t) { return t.defined() ? t.clone().requires_grad_() : t; };
    return {leaf(x), leaf(factor), leaf(weight), leaf(bias)};
  }
  [[nodiscard]] std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& t : {x, factor, weight, bias}) {
      if (t.defined()) all.push_back(t.grad());
    }
    return all;
  }
};

LinearInputs linear_inputs(std::int64_t rows, std::int64_t in, at::ScalarType type, bool has_factor, bool has_bias) {
  torch::manual_seed(rows + in);
  const auto random = [&](at::IntArrayRef sizes) { return (torch::randn(sizes) * 2).to(type); };
  return {random({2, rows, in}), has_factor ? random({2, rows, in}) : at::Tensor(), random({24, in}),
          has_bias ? random({24}) : at::Tensor()};
}

at::Tensor composed(const LinearInputs& in, Activation f) {
  at::Tensor h = activated(in.x, f);
  if (in.factor.defined()) h = h * in.factor;
  return at::linear(h, in.weight, in.bias);
}

at::Tensor fused(const LinearInputs& in, Activation f) {
  return activated_linear({.x = in.x, .f = f, .factor = in.factor}, in.weight, in.bias);
}

using Forward = std::function<at::Tensor(const LinearInputs&)>;

std::vector<at::Tensor> result_and_gradients(const Forward& forward, const LinearInputs& in) {
  const LinearInputs leaves = in.leaves();
  const at::Tensor y = forward(leaves);
  torch::manual_seed(1);
  y.backward(torch::randn(y.sizes()).to(y.scalar_type()));
  auto all = leaves.gradients();
  all.push_back(y.detach());
  return all;
}

void expect_same(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(same_bits(found[i], expected[i])) << "tensor " << i;
}

TEST(ActivatedLinear, HasTheBitsOfOneOperatorAfterTheOther) {
  const int threads_before = at::get_num_threads();
  for (const int threads : {1, 2, 3, 4, 5, 8}) {
    at::set_num_threads(threads);
    for (const Activation f : kAll) {
      for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
        // 1,024 * 384 are whole vectors for each thread, 33 * 7 are not.
        for (const auto& [rows, width] :
             {std::pair{512, 384}, std::pair{33, 7}, std::pair{96, 128}, std::pair{65, 512}}) {
          for (const bool has_factor : {false, true}) {
            SCOPED_TRACE(::testing::Message() << threads << " threads, f " << static_cast<int>(f) << ", " << type
                                              << ", " << rows << "x" << width << ", factor " << has_factor);
            const LinearInputs in = linear_inputs(rows, width, type, has_factor, !has_factor);
            expect_same(result_and_gradients([&](const LinearInputs& i) { return fused(i, f); }, in),
                        result_and_gradients([&](const LinearInputs& i) { return composed(i, f); }, in));
          }
        }
      }
    }
  }
  at::set_num_threads(threads_before);
}

TEST(ActivatedLinear, HasKernelsWithTheBitsOfThisLibTorch) {
  // If not, the test above passes without them.
  for (const Activation f : {Activation::GeluTanh, Activation::Silu}) {
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      EXPECT_TRUE(has_activation_kernel(f, type)) << static_cast<int>(f) << " " << type;
    }
  }
  EXPECT_FALSE(has_activation_kernel(Activation::Gelu, at::kFloat));
}

TEST(ActivatedLinear, TakesNumbersThatAreLargeOrMissing) {
  LinearInputs in = linear_inputs(64, 128, at::kFloat, true, false);
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> numbers{inf, -inf, std::nanf(""), 0.0F, -0.0F, 1e30F, -1e30F, 1e-40F, 88.0F, -104.0F};
  for (std::size_t i = 0; i < numbers.size(); ++i) in.x[0][static_cast<std::int64_t>(i)][3] = numbers[i];
  for (const Activation f : kAll) {
    const LinearInputs a = in.leaves(), b = in.leaves();
    const at::Tensor found = gated(a.x, a.factor, f), expected = activated(b.x, f) * b.factor;
    found.sum().backward();
    expected.sum().backward();
    const auto same = [](const at::Tensor& s, const at::Tensor& t) {
      return torch::allclose(s, t, 0, 0, /*equal_nan=*/true);
    };
    EXPECT_TRUE(same(found, expected));
    EXPECT_TRUE(same(a.x.grad(), b.x.grad()));
    EXPECT_TRUE(same(a.factor.grad(), b.factor.grad()));
  }
}

TEST(ActivatedLinear, TakesWhatIsNotContiguousAndATransposedWeight) {
  LinearInputs in = linear_inputs(128, 256, at::kBFloat16, true, true);
  in.weight = in.weight.t().contiguous();
  const auto turned = [](const LinearInputs& i) {
    return LinearInputs{i.x.transpose(0, 1), i.factor.transpose(0, 1), i.weight.t(), i.bias};
  };
  for (const Activation f : kAll) {
    expect_same(result_and_gradients([&](const LinearInputs& i) { return fused(turned(i), f); }, in),
                result_and_gradients([&](const LinearInputs& i) { return composed(turned(i), f); }, in));
  }
}

TEST(ActivatedLinear, HasTheTypesOfAutocast) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    LinearInputs in = linear_inputs(128, 256, type, true, true);
    in.weight = in.weight.to(at::kFloat);
    in.bias = in.bias.to(at::kFloat);
    const auto cast = [](const auto& forward) {
      return [&](const LinearInputs& i) {
        const models::AutocastScope autocast(at::kBFloat16, c10::kCPU);
        return forward(i, Activation::Silu);
      };
    };
    const auto found = result_and_gradients(cast(fused), in);
    expect_same(found, result_and_gradients(cast(composed), in));
    EXPECT_EQ(found.back().scalar_type(), at::kBFloat16);
  }
}

TEST(ActivatedLinear, MakesOnlyTheGradientsThatAreAskedFor) {
  const LinearInputs in = linear_inputs(128, 256, at::kFloat, true, true);
  for (int trains = 1; trains < 16; ++trains) {
    const auto some = [&](int bit, const at::Tensor& t) { return t.clone().requires_grad_((trains >> bit & 1) != 0); };
    const auto run = [&](const auto& forward) {
      const LinearInputs given{some(0, in.x), some(1, in.factor), some(2, in.weight), some(3, in.bias)};
      forward(given, Activation::GeluTanh).sum().backward();
      return given.gradients();
    };
    const auto found = run(fused), expected = run(composed);
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].defined(), (trains >> i & 1) != 0);
      if (found[i].defined()) {
        EXPECT_TRUE(same_bits(found[i], expected[i]));
      }
    }
  }
}

TEST(ActivatedLinear, KeepsOnlyItsInput) {
  const LinearInputs in = linear_inputs(512, 1024, at::kFloat, false, false).leaves();
  auto& memory = memory::device_memory(c10::kCPU);
  const Bytes before = memory.stats().allocated;
  const at::Tensor y = fused(in, Activation::Gelu);
  EXPECT_LT(memory.stats().allocated - before, in.x.nbytes() / 4);  // y, and not f(x)
}

TEST(ActivatedLinear, IsDifferentiatedTwice) {
  LinearInputs in = linear_inputs(2, 5, at::kDouble, true, true);
  const auto twice = [&](const auto& forward) {
    const LinearInputs leaves = in.leaves();
    const at::Tensor y = forward(leaves, Activation::Silu);
    const auto first = torch::autograd::grad({y.square().sum()}, {leaves.x, leaves.factor, leaves.weight, leaves.bias},
                                             {}, true, /*create_graph=*/true);
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (const at::Tensor& g : first) sum = sum + g.sin().sum();
    sum.backward();
    return leaves.gradients();
  };
  const auto found = twice(fused), expected = twice(composed);
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-12, 1e-12));
}

TEST(ActivatedLinear, IsReplayed) {
  const LinearInputs in = linear_inputs(128, 256, at::kBFloat16, true, true);
  const auto loss = [](const LinearInputs& i) {
    return fused({i.x * 2, i.factor * 3, i.weight, i.bias}, Activation::Silu).to(at::kFloat).square().sum();
  };
  const LinearInputs plain = in.leaves(), replayed = in.leaves();
  loss(plain).backward();
  std::int64_t ops = 0;
  {
    Region region(Recompute{});
    loss(replayed).backward();
    ops = region.replayed_ops();
  }
  expect_same(replayed.gradients(), plain.gradients());
  EXPECT_GE(ops, 3);
}

TEST(ActivatedLinear, RefusesShapesThatDoNotFit) {
  const at::Tensor x = torch::randn({2, 8}), weight = torch::randn({3, 8});
  EXPECT_THROW(activated_linear({.x = x}, torch::randn({3, 7})), Error);
  EXPECT_THROW(activated_linear({.x = x, .factor = torch::randn({2, 7})}, weight), Error);
  EXPECT_THROW(activated_linear({.x = x}, weight.to(at::kDouble)), Error);
  EXPECT_THROW(gated(x, x.to(at::kBFloat16), Activation::Silu), Error);
}

}  // namespace
}  // namespace snug::ops
