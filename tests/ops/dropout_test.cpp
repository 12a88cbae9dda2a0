#include "snug/ops/dropout.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/replay/region.h"
#include "tests/equivalence/bitwise.h"

namespace snug::ops {
namespace {

using snug::testing::same_bits;

/// The result, x's gradient, and the draw that comes behind it.
template <class Drop>
std::vector<at::Tensor> through(const at::Tensor& x, const Drop& drop) {
  torch::manual_seed(3);
  const at::Tensor leaf = x.clone().requires_grad_();
  const at::Tensor y = drop(leaf);
  const at::Tensor next = torch::rand({4});
  y.backward(torch::linspace(-2, 2, x.numel()).view(x.sizes()).to(x.scalar_type()));
  return {y.detach(), leaf.grad(), next};
}

void expect_alike(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(found[i], expected[i])) << i;
}

TEST(Dropout, DrawsAndComputesAsLibTorchs) {
  const int threads_before = at::get_num_threads();
  for (const int threads : {1, 3}) {
    at::set_num_threads(threads);
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      for (const auto& [rows, width] : {std::pair{64, 384}, {3, 7}, {1, 1}, {5, 8}, {1, 40003}}) {
        for (const double p : {0.1, 0.5, 0.0, 1.0, 1 - 1e-5}) {
          SCOPED_TRACE(::testing::Message()
                       << threads << " threads, " << type << ", " << rows << "x" << width << ", " << p);
          const at::Tensor x = torch::randn({rows, width}).to(type);
          expect_alike(through(x, [&](const at::Tensor& t) { return ops::dropout(t, p); }),
                       through(x, [&](const at::Tensor& t) { return at::dropout(t, p, true); }));
        }
      }
    }
  }
  at::set_num_threads(threads_before);
  const at::Tensor x = torch::randn({4, 4});
  EXPECT_TRUE(ops::dropout(x, 0).is_same(x));
}

TEST(Dropout, HasAKernelForEveryType) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = torch::randn({4, 4}).to(type).requires_grad_();
    EXPECT_NE(ops::dropout(x, 0.5).grad_fn()->name().find("Dropout"), std::string::npos) << type;
  }
}

TEST(Dropout, KeepsABitOfEachElement) {
  const at::Tensor x = torch::randn({256, 512}).requires_grad_();
  auto& memory = memory::device_memory(c10::kCPU);
  const auto kept = [&](const auto& drop) {
    const Bytes before = memory.stats().allocated;
    const at::Tensor y = drop(x);
    return memory.stats().allocated - before - static_cast<Bytes>(y.nbytes());
  };
  EXPECT_LT(kept([](const at::Tensor& t) { return ops::dropout(t, 0.1); }), x.numel() / 8 + 16_KiB);
  EXPECT_GE(kept([](const at::Tensor& t) { return at::dropout(t, 0.1, true); }), 4 * x.numel()) << "beside LibTorch's";
}

TEST(Dropout, IsMadeAgainBitForBit) {
  const at::Tensor x = torch::randn({64, 96});
  const auto again = [&](const at::Tensor& t) {
    const Region region(Recompute{});
    return ops::dropout((t * 2).sin(), 0.3).cos();
  };
  expect_alike(through(x, again),
               through(x, [](const at::Tensor& t) { return at::dropout((t * 2).sin(), 0.3, true).cos(); }));
}

TEST(Dropout, TakesNumbersThatAreMissing) {
  at::Tensor x = torch::randn({8, 8});
  x[0].fill_(std::numeric_limits<float>::infinity());
  x[1].fill_(std::numeric_limits<float>::quiet_NaN());
  torch::manual_seed(0);
  const at::Tensor found = ops::dropout(x, 0.5);
  torch::manual_seed(0);
  EXPECT_TRUE(torch::allclose(found, at::dropout(x, 0.5, true), 0, 0, /*equal_nan=*/true));
}

TEST(Dropout, IsDifferentiatedTwice) {
  const auto second = [](const auto& drop) {
    torch::manual_seed(0);
    const at::Tensor x = torch::randn({3, 16}, at::kDouble).requires_grad_();
    const auto first = torch::autograd::grad({at::Tensor(drop(x).pow(3).sum())}, {x}, {}, true, true);
    first[0].pow(2).sum().backward();
    return x.grad();
  };
  EXPECT_TRUE(same_bits(second([](const at::Tensor& x) { return ops::dropout(x, 0.4); }),
                        second([](const at::Tensor& x) { return at::dropout(x, 0.4, true); })));
}

}  // namespace
}  // namespace snug::ops
