// Sessions of several models beside each other, each with a budget of its own.
#include <gtest/gtest.h>

#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"
#include "tests/replay/layers_net.h"

namespace snug {
namespace {

using testing::expect_same;
using testing::Net;
using testing::test_memory;
using testing::unplanned_peak;

TEST(SeveralSessions, EachRunsUnderItsBudgetBesideAYoungerOne) {
  Net large, small;
  const at::Tensor x = torch::randn({2048, 256}), part = torch::randn({256, 256});
  const auto expected = large.plain(x);
  const Bytes budget = unplanned_peak(large, x) * 7 / 10;
  Session first = fit(large, x, {.budget = budget});
  Bytes in_step = 0;
  const auto step = [&](const at::Tensor& batch) {
    in_step = test_memory().stats().limit.value_or(0);
    return large(batch);
  };
  {
    const Bytes less = test_memory().stats().allocated + 3_MiB;
    ASSERT_LT(less, first.plan().predicted_peak);
    Session second = fit(small, part, {.budget = less});
    second.backward(small, part);
    small.layers->zero_grad();
    EXPECT_EQ(test_memory().stats().limit, less);
    test_memory().reset_peak();
    first.backward(step, x);
    EXPECT_EQ(in_step, budget);
    EXPECT_TRUE(first.last_step().followed_plan) << first.last_step().divergence;
    EXPECT_LE(test_memory().stats().allocated_peak, budget);
    EXPECT_EQ(test_memory().stats().limit, less);
  }
  EXPECT_EQ(test_memory().stats().limit, budget);
  expect_same(expected, large.gradients());
}

}  // namespace
}  // namespace snug
