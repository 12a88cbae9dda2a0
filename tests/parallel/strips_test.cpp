// Parameters that are larger than a bucket.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "snug/parallel/data_parallel.h"
#include "tests/equivalence/bitwise.h"
#include "tests/parallel/processes.h"
#include "tests/parallel/trained_gpt.h"

namespace snug::parallel {
namespace {

using testing::in_processes;
using testing::same_bits;

/// A parameter that is much larger than a bucket needs no memory as large beside its gradient, when it is handed in and
/// when it is put together again.
TEST(Strips, OfLargeParametersTakeLittleMemory) {
  in_processes(2, [](World& world) {
    memory::DeviceMemory& memory = testing::cpu();
    constexpr std::int64_t kElements = 1 << 20;
    constexpr Bytes kBucket = 64_KiB, kParameter = kElements * 4;
    const at::Tensor large = torch::ones({kElements}).requires_grad_(), times = torch::rand({kElements});
    DataParallel parallel({large}, world.all(), {.leaves = DataParallelOptions::Leaves::Shards, .bucket = kBucket});
    for (int pass = 0; pass < 2; ++pass) {
      const Bytes before = memory.stats().allocated;
      memory.reset_peak();
      (large * times).sum().backward();
      const Bytes product_and_gradient = 2 * kParameter, shard = pass == 0 ? kParameter / 2 : 0;
      EXPECT_LE(memory.stats().allocated_peak - before, product_and_gradient + shard + 8 * kBucket) << pass;
    }
    const Bytes before = memory.stats().allocated;
    memory.reset_peak();
    parallel.gather();
    EXPECT_LE(memory.stats().allocated_peak - before, 4 * kBucket);
    EXPECT_EQ(parallel.buckets(), 1U);
  });
}

/// What none reaches has no gradient, and keeps what earlier passes have left.
TEST(Strips, OfParametersThatAreNotUsedAreKnown) {
  in_processes(2, [](World& world) {
    const at::Tensor both = torch::ones({1000}).requires_grad_(), second = torch::ones({1000}).requires_grad_(),
                     none = torch::ones({1000}).requires_grad_();
    const DataParallel parallel(
        {both, second, none}, world.all(),
        {.combine = DataParallelOptions::Combine::Sum, .leaves = DataParallelOptions::Leaves::Shards, .bucket = 1_KiB});
    for (int pass = 0; pass < 2; ++pass) {
      at::Tensor loss = (both * 3).sum();
      if (world.all()->rank() == 1 && pass == 0) loss = loss + (second * 7).sum();
      loss.backward();
    }
    for (const Shard& shard : parallel.shards()) {
      if (shard.of.is_same(none)) {
        EXPECT_FALSE(shard.tensor.grad().defined());
      } else {
        const float expected = shard.of.is_same(both) ? 12 : 7;
        EXPECT_TRUE(same_bits(shard.tensor.grad(), torch::full({shard.tensor.numel()}, expected)));
      }
    }
  });
}

}  // namespace
}  // namespace snug::parallel
