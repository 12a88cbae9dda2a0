// Casts of weights in mixed precision.
#include "snug/models/autocast.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <utility>

#include "snug/memory/device_memory.h"

namespace snug::models {
namespace {

TEST(Autocast, DroppedCastsTakeNoMemoryAndChangeNoBit) {
  auto& memory = memory::device_memory(c10::kCPU);
  torch::manual_seed(1);
  const at::Tensor weight = torch::randn({512, 512}).requires_grad_(), x = torch::randn({4, 512});
  const auto run = [&](WeightCasts casts) {
    weight.mutable_grad() = at::Tensor();
    const Bytes before = memory.stats().allocated;
    Bytes held = 0;
    at::Tensor y;
    {
      const AutocastScope autocast(at::kBFloat16, c10::kCPU, casts);
      {
        const at::NoGradGuard no_grad;  // so that nothing else holds the cast
        (void)at::linear(x, weight);
      }
      y = at::linear(x, weight);
      y.sum().backward();
      y = y.detach();
      held = memory.stats().allocated - before - memory.rounded(static_cast<Bytes>(weight.nbytes()));
    }
    return std::pair{held, at::cat({y.to(at::kFloat).flatten(), weight.grad().flatten()})};
  };
  const auto [cached, expected] = run(WeightCasts::Cached);
  const auto [dropped, found] = run(WeightCasts::Dropped);
  EXPECT_GE(cached, 512 * 512 * 2);
  EXPECT_LT(dropped, 512 * 512);
  EXPECT_TRUE(at::equal(found, expected));
}

TEST(Autocast, LeavesTheSettingsAsTheyWere) {
  ASSERT_TRUE(at::autocast::is_autocast_cache_enabled());
  {
    const AutocastScope outer(at::kBFloat16, c10::kCPU, WeightCasts::Dropped);
    EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
    { const AutocastScope inner(at::kBFloat16, c10::kCPU); }
    EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
    { const AutocastScope none(std::nullopt, c10::kCPU, WeightCasts::Cached); }
    EXPECT_TRUE(at::autocast::is_autocast_enabled(c10::kCPU));
  }
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  EXPECT_FALSE(at::autocast::is_autocast_enabled(c10::kCPU));
}

}  // namespace
}  // namespace snug::models
