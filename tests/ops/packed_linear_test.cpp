#include "snug/ops/packed_linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/models/autocast.h"
#include "snug/ops/row_tiles.h"
#include "snug/replay/region.h"
#include "tests/equivalence/bitwise.h"
#include "tests/ops/packed.h"

namespace snug::ops {
namespace {

using snug::testing::plain;
using snug::testing::random_packed;
using snug::testing::same_bits;
using ::testing::HasSubstr;

TEST(PackedMatrix, DecodesTheRowsThatTokensName) {
  torch::manual_seed(1);
  const PackedMatrix matrix = random_packed(10, 64);
  const at::Tensor tokens = torch::tensor({{3, 9, 3}, {0, 1, 2}});
  const at::Tensor found = packed_embedding(matrix, tokens);
  EXPECT_EQ(found.sizes(), (std::vector<std::int64_t>{2, 3, 64}));
  EXPECT_TRUE(same_bits(found, torch::embedding(plain(matrix), tokens)));
}

/// Any blocks of a format, with scales that are numbers.
at::Tensor any_blocks(const BlockLayout& layout, std::int64_t rows, std::int64_t count) {
  const auto bytes = static_cast<std::int64_t>(layout.bytes);
  const at::Tensor blocks = torch::randint(0, 256, {rows, count, bytes}, torch::kByte);
  const bool wide = layout.format == BlockFormat::F32;
  // The upper byte of an exponent, where that is in front of the block, behind it, or all of it.
  for (const std::int64_t at : {std::int64_t{1}, std::int64_t{3}, bytes - 1}) {
    if (at < bytes && (!wide || at == 3)) blocks.select(2, at).bitwise_and_(0x3b);
  }
  return blocks.view({rows, -1});
}

TEST(PackedMatrix, IsDecodedToShortTypesAsIfRoundedAfterwards) {
  torch::manual_seed(7);
  for (const BlockFormat format :
       {BlockFormat::F32, BlockFormat::F16, BlockFormat::BF16, BlockFormat::Q4_0, BlockFormat::Q4_1, BlockFormat::Q5_0,
        BlockFormat::Q5_1, BlockFormat::Q8_0, BlockFormat::Q4_K, BlockFormat::Q5_K, BlockFormat::Q6_K}) {
    const BlockLayout& layout = block_layout(format);
    for (const std::int64_t count : {1, 3, 257}) {
      const at::Tensor blocks = any_blocks(layout, 5, count);
      const at::Tensor whole = unpack(blocks, format);
      ASSERT_TRUE(whole.isfinite().all().item<bool>()) << layout.name;
      for (const auto dtype : {at::kBFloat16, at::kHalf, at::kDouble})
        EXPECT_TRUE(same_bits(unpack(blocks, format, dtype), whole.to(dtype))) << layout.name << " as " << dtype;
    }
  }
}

TEST(PackedMatrix, IsDecodedByProductsAndSumsThatAreRoundedOneByOne) {
  torch::manual_seed(8);
  const PackedMatrix matrix = random_packed(65, 96);
  const at::Tensor blocks = matrix.blocks.view({65, 3, 20});
  const at::Tensor scales = blocks.narrow(2, 0, 4).contiguous().view(torch::kHalf).to(torch::kFloat);
  const at::Tensor bytes = blocks.narrow(2, 4, 16);
  const at::Tensor numbers = torch::cat({bytes.bitwise_and(15), bytes.bitwise_right_shift(4)}, 2).to(torch::kFloat);
  const at::Tensor expected = numbers.mul(scales.narrow(2, 0, 1)).add(scales.narrow(2, 1, 1)).view({65, 96});
  EXPECT_TRUE(same_bits(unpack(matrix.blocks, matrix.format), expected));
}

TEST(PackedMatrix, RowsComeInTheTypeOfAutocast) {
  torch::manual_seed(9);
  const PackedMatrix matrix = random_packed(10, 64);
  const at::Tensor tokens = torch::tensor({3, 9});
  const at::Tensor whole = packed_embedding(matrix, tokens);
  EXPECT_EQ(whole.scalar_type(), at::kFloat);
  const models::AutocastScope autocast(at::kBFloat16, c10::kCPU);
  EXPECT_TRUE(same_bits(packed_embedding(matrix, tokens), whole.to(at::kBFloat16)));
  EXPECT_THROW((void)unpack(matrix.blocks, matrix.format, at::kInt), Error);
}

TEST(PackedMatrix, RefusesBytesOfAnotherShape) {
  const at::Tensor bytes = torch::zeros({2 * 40}, torch::kByte);
  EXPECT_EQ(packed_matrix(BlockFormat::Q4_1, {2, 64}, bytes).columns(), 64);
  EXPECT_THROW(packed_matrix(BlockFormat::Q4_1, {2, 32}, bytes), Error);
  EXPECT_THROW(packed_matrix(BlockFormat::Q4_1, {4, 64}, bytes), Error);
  EXPECT_THROW(packed_matrix(BlockFormat::Q4_1, {128}, bytes), Error);
}

TEST(PackedLinear, IsBitwiseTheProductWithTheDecodedMatrix) {
  torch::manual_seed(2);
  const PackedMatrix matrix = random_packed(48, 64);
  const at::Tensor x = torch::randn({2, 5, 64}).requires_grad_(), same = x.detach().clone().requires_grad_();
  const at::Tensor y = packed_linear(x, matrix), expected = torch::linear(same, plain(matrix));
  EXPECT_TRUE(same_bits(y, expected));
  const at::Tensor gradient = torch::randn_like(y);
  y.backward(gradient);
  expected.backward(gradient);
  EXPECT_TRUE(same_bits(x.grad(), same.grad()));
}

TEST(PackedLinear, WorksThroughALargeMatrixInGroupsOfRows) {
  torch::manual_seed(3);
  const std::int64_t rows = 3 * kTileBytes / (64 * 2) / 2;  // one and a half groups, or three
  const PackedMatrix matrix = random_packed(rows, 64);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = torch::randn({3, 64}, dtype).requires_grad_(), same = x.detach().clone().requires_grad_();
    const at::Tensor y = packed_linear(x, matrix), expected = torch::linear(same, plain(matrix).to(dtype));
    const at::Tensor gradient = torch::randn_like(y);
    y.backward(gradient);
    expected.backward(gradient);
    // Another blocking of the same sums, of 64 and of about 200,000 terms: neither is exact, and one rounds as the
    // other.
    const at::Tensor weight = plain(matrix).to(dtype).to(at::kDouble);
    const at::Tensor exact = torch::linear(x.detach().to(at::kDouble), weight);
    const at::Tensor exact_gradient = gradient.to(at::kDouble).matmul(weight);
    const auto error = [](const at::Tensor& a, const at::Tensor& b) { return (a - b).norm().item<double>(); };
    EXPECT_LT(error(y, exact), 2 * error(expected, exact)) << dtype;
    EXPECT_LT(error(x.grad(), exact_gradient), 2 * error(same.grad(), exact_gradient)) << dtype;
    EXPECT_LT(error(same.grad(), exact_gradient), 0.01 * exact_gradient.norm().item<double>()) << dtype;
  }
}

TEST(PackedLinear, NeitherStoresTheDecodedMatrixNorKeepsItsInput) {
  torch::manual_seed(4);
  const PackedMatrix matrix = random_packed(4096, 1024);  // 16 MiB as fp32
  at::Tensor x = torch::randn({2, 1024}).requires_grad_();
  auto& memory = memory::device_memory(c10::kCPU);
  const Bytes before = memory.stats().allocated;
  const at::Tensor y = packed_linear(x, matrix);
  EXPECT_LT(memory.stats().allocated - before, Bytes{2 * 4096 * 4 + 8192});
}

TEST(PackedLinear, CastsUnderAutocastAsALinearDoes) {
  torch::manual_seed(5);
  const PackedMatrix matrix = random_packed(32, 64);
  const at::Tensor x = torch::randn({4, 64}).requires_grad_(), same = x.detach().clone().requires_grad_();
  at::Tensor y, expected;
  {
    const models::AutocastScope autocast(at::kBFloat16, c10::kCPU);
    y = packed_linear(x, matrix);
    expected = torch::linear(same, plain(matrix));
  }
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(same_bits(y, expected));
  y.sum().backward();
  expected.sum().backward();
  EXPECT_TRUE(same_bits(x.grad(), same.grad()));
}

TEST(PackedLinear, IsReplayed) {
  torch::manual_seed(6);
  const PackedMatrix first = random_packed(64, 64), second = random_packed(64, 64);
  const at::Tensor x = torch::randn({4, 64}).requires_grad_();
  const auto loss = [&] { return packed_linear(torch::gelu(packed_linear(x, first)), second).square().sum(); };
  loss().backward();
  const at::Tensor expected = x.grad().clone();
  x.mutable_grad() = at::Tensor();
  std::int64_t replayed = 0;
  {
    Region region(Recompute{});
    loss().backward();
    replayed = region.replayed_ops();
  }
  EXPECT_TRUE(same_bits(x.grad(), expected));
  EXPECT_GE(replayed, 2);
}

TEST(PackedLinear, RefusesAnInputOfAnotherWidth) {
  const PackedMatrix matrix = random_packed(8, 64);
  try {
    packed_linear(torch::zeros({2, 32}), matrix);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("2x32 and a matrix of 8x64"));
  }
}

}  // namespace
}  // namespace snug::ops
