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
  const std::int64_t rows = 3 * kTileBytes / (64 * 4) / 2;  // one and a half groups
  const PackedMatrix matrix = random_packed(rows, 64);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = torch::randn({3, 64}, dtype).requires_grad_(), same = x.detach().clone().requires_grad_();
    const at::Tensor y = packed_linear(x, matrix), expected = torch::linear(same, plain(matrix).to(dtype));
    const at::Tensor gradient = torch::randn_like(y);
    y.backward(gradient);
    expected.backward(gradient);
    // Another blocking of the same sums, which have 64 and about 100,000 terms.
    const double rounding = dtype == at::kFloat ? 1e-6 : 1e-2;
    EXPECT_TRUE(torch::allclose(y, expected, rounding, rounding)) << dtype;
    EXPECT_TRUE(torch::allclose(x.grad(), same.grad(), 10 * rounding, 10 * rounding)) << dtype;
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
    const models::AutocastScope autocast(at::kBFloat16);
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
