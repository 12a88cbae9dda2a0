#include "snug/record/view.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <random>
#include <set>

namespace {

using namespace snug::record;

std::set<std::int64_t> elements_of(const at::Tensor& tensor) {
  const at::Tensor flat = torch::arange(tensor.storage().nbytes() / sizeof(float));
  std::set<std::int64_t> elements;
  const at::Tensor shown = flat.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset()).contiguous();
  for (std::int64_t i = 0; i < shown.numel(); ++i) elements.insert(shown.data_ptr<std::int64_t>()[i]);
  return elements;
}

bool have_one_in_common(const at::Tensor& a, const at::Tensor& b) {
  const std::set<std::int64_t> of_a = elements_of(a);
  for (const std::int64_t element : elements_of(b)) {
    if (of_a.contains(element)) return true;
  }
  return false;
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  GeometryPool pool;
  return pool.overlap(pool.add(a), pool.add(b));
}

TEST(GeometryPool, WindowsOverlapWhereTheyHaveAnElementInCommon) {
  std::mt19937 random(1);
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random()) % n; };
  const at::Tensor whole = torch::zeros({5, 6, 7});
  const auto window = [&] {
    at::Tensor part = whole;
    for (std::int64_t dim = 0; dim < 3; ++dim) {
      const std::int64_t size = 1 + below(part.size(dim));
      part = part.narrow(dim, below(part.size(dim) - size + 1), size);
    }
    if (below(3) == 0) part = part.select(0, 0);
    return below(2) == 0 ? part.transpose(0, 1) : part;
  };
  int common = 0;
  for (int i = 0; i < 2000; ++i) {
    const at::Tensor a = window(), b = window();
    ASSERT_EQ(overlap(a, b), have_one_in_common(a, b))
        << a.sizes() << " at " << a.storage_offset() << ", " << b.sizes() << " at " << b.storage_offset();
    common += have_one_in_common(a, b) ? 1 : 0;
  }
  EXPECT_GT(common, 500);
  EXPECT_LT(common, 1500);
}

TEST(GeometryPool, ViewsThatAreHardToTellApartOverlap) {
  const at::Tensor whole = torch::zeros({64});
  EXPECT_TRUE(overlap(whole.as_strided({4, 4}, {3, 2}), whole.as_strided({4}, {8}, 1)));
  EXPECT_TRUE(overlap(whole.narrow(0, 0, 8), whole.view(torch::kInt).narrow(0, 4, 8)));
  EXPECT_FALSE(overlap(whole.narrow(0, 0, 8), whole.view(torch::kInt).narrow(0, 8, 8)));
  EXPECT_FALSE(overlap(whole.narrow(0, 0, 0), whole));
}

}  // namespace
