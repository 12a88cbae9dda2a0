#include "snug/models/key_value_cache.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "snug/base/errors.h"

namespace snug::models {
namespace {

TEST(KeyValueCache, GivesAllThatWasAppended) {
  KeyValueCache::Layer layer;
  const at::Tensor all = torch::randn({2, 3, 5, 4});
  at::Tensor keys, values;
  for (std::int64_t seen = 0; seen < 5; ++seen) {
    keys = all.narrow(2, seen, 1);
    values = -keys;
    append(layer, seen, keys, values);
  }
  EXPECT_TRUE(at::equal(keys, all));
  EXPECT_TRUE(at::equal(values, -all));
}

TEST(KeyValueCache, BeginsAnewWithABatchOfAnotherSizeOrType) {
  KeyValueCache::Layer layer;
  at::Tensor keys = torch::randn({4, 3, 6, 8}), values = torch::randn({4, 3, 6, 8});
  append(layer, 0, keys, values);
  for (const auto type : {at::kFloat, at::kDouble}) {
    const at::Tensor one = torch::randn({1, 3, 2, 8}, type);
    at::Tensor fresh = one, other = one;
    append(layer, 0, fresh, other);
    EXPECT_TRUE(at::equal(fresh, one));
    EXPECT_EQ(fresh.scalar_type(), type);
  }
  at::Tensor wrong = torch::randn({2, 3, 1, 8}, at::kDouble), too = wrong;
  EXPECT_THROW(append(layer, 2, wrong, too), UsageError);
}

}  // namespace
}  // namespace snug::models
