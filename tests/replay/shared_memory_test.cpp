// Memory that others write who raise no version, as NumPy does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace snug {
namespace {

using ::testing::HasSubstr;
using testing::same_bits;

TEST(SharedMemory, ThatOthersFillAnewIsNotReadByAReplay) {
  SNUG_ONLY_ON_THE_CPU("memory that other processes share");
  std::vector<float> memory(256, 1.0F);
  const at::Tensor x = torch::rand({16, 16}).requires_grad_(), shared = at::from_blob(memory.data(), {16, 16});
  const auto step = [&](bool refill) {
    const at::Tensor noise = shared.sin();
    at::Tensor h;
    {
      const Region region(Recompute{});
      h = ((x * noise).sin() * shared.cos()).sum();
    }
    if (refill) std::fill(memory.begin(), memory.end(), 2.0F);
    h.backward();
  };
  EXPECT_NO_THROW(step(false));
  EXPECT_THAT([&] { step(true); }, ::testing::ThrowsMessage<Error>(HasSubstr("something that PyTorch does not see")));
}

TEST(SharedMemory, ThatOthersFillBetweenTwoReadsIsReadTwice) {
  SNUG_ONLY_ON_THE_CPU("memory that other processes share");
  std::vector<float> memory(256, 1.0F);
  const at::Tensor x = torch::rand({16, 16}).requires_grad_(), shared = at::from_blob(memory.data(), {16, 16});
  const auto step = [&] {
    std::fill(memory.begin(), memory.end(), 1.0F);
    at::Tensor h = x * shared.sin();
    std::fill(memory.begin(), memory.end(), 2.0F);
    {
      const Region region(Recompute{});
      h = (h * shared.cos()).sin().sum();
    }
    h.backward();
    return std::exchange(x.mutable_grad(), at::Tensor());
  };
  const at::Tensor first = step();
  std::fill(memory.begin(), memory.end(), 1.0F);
  const at::Tensor ones = shared.clone(), twos = ones + 1;
  (x * ones.sin() * twos.cos()).sin().sum().backward();
  EXPECT_TRUE(same_bits(first, std::exchange(x.mutable_grad(), at::Tensor())));
}

}  // namespace
}  // namespace snug
