// Attention in a ring, beside that of one process.
#include "snug/ops/ring_attention.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/models/context_parts.h"
#include "snug/parallel/rehearsed_world.h"
#include "snug/parallel/tensor_group.h"
#include "tests/equivalence/bitwise.h"
#include "tests/parallel/processes.h"

namespace snug::parallel {
namespace {

using ::testing::HasSubstr;
using testing::in_processes;

constexpr std::int64_t kPositions = 2;

struct Sizes {
  std::int64_t heads = 4, key_heads = 4, width = 16, value_width = 16;
};

/// In fp64: softmax(query key^T) value of the positions before.
at::Tensor plain(const std::array<at::Tensor, 3>& in) {
  const std::int64_t group = in[0].size(1) / in[1].size(1);
  const at::Tensor query = in[0].to(at::kDouble), key = in[1].to(at::kDouble).repeat_interleave(group, 1),
                   value = in[2].to(at::kDouble).repeat_interleave(group, 1);
  at::Tensor scores = at::matmul(query, key.transpose(2, 3)) / std::sqrt(static_cast<double>(query.size(3)));
  const at::Tensor later = torch::ones({scores.size(2), scores.size(3)}, at::kBool).triu(1);
  return at::matmul(scores.masked_fill(later, -std::numeric_limits<double>::infinity()).softmax(-1), value);
}

void is_close(const at::Tensor& found, const at::Tensor& expected, double bound, const std::string& what) {
  const double difference = (found.to(at::kDouble) - expected).norm().item<double>();
  EXPECT_LE(difference, bound * expected.norm().item<double>()) << what;
}

void is_that_of_one_process(World& world, at::ScalarType type, const Sizes& sizes, double bound) {
  const int rank = world.all()->rank(), size = world.all()->size();
  const std::int64_t length = std::int64_t{12} * size;
  torch::manual_seed(7);  // the same in all
  std::array<at::Tensor, 3> whole = {torch::randn({2, sizes.heads, length, sizes.width}),
                                     torch::randn({2, sizes.key_heads, length, sizes.width}),
                                     torch::randn({2, sizes.key_heads, length, sizes.value_width})};
  for (at::Tensor& one : whole) one = one.to(type).requires_grad_();
  const at::Tensor gradient = torch::randn({2, sizes.heads, length, sizes.value_width}).to(type);
  const models::SequencePieces pieces = models::pieces_of(models::ContextMethod::Ring, length, rank, size);
  const auto own = [&](const at::Tensor& t) { return models::take_pieces(t, kPositions, pieces); };
  std::array<at::Tensor, 3> mine;
  for (std::size_t i = 0; i < whole.size(); ++i) mine[i] = own(whole[i].detach()).requires_grad_();
  const auto processes = world.group(world.all()->members());
  const ops::LayerGroup group = tensor_group(processes);
  const at::Tensor out = ops::ring_attention(mine[0], mine[1], mine[2], group);
  EXPECT_EQ(out.scalar_type(), type);
  const auto of_keys = static_cast<Bytes>(mine[1].nbytes() + mine[2].nbytes());
  EXPECT_EQ(processes->count_of<Send>().calls, size - 1);
  EXPECT_EQ(processes->count_of<Send>().bytes, (size - 1) * of_keys);
  out.backward(own(gradient));
  EXPECT_EQ(processes->count_of<Send>().calls, size - 1 + size - 1 + size) << "gradients go home";
  const Bytes of_gradients = type == at::kBFloat16 ? 2 * of_keys : of_keys;
  EXPECT_EQ(processes->count_of<Send>().bytes, 2 * (size - 1) * of_keys + size * of_gradients);
  const at::Tensor expected = plain(whole);
  expected.backward(gradient.to(at::kDouble));
  is_close(out, own(expected), bound, "forward");
  for (std::size_t i = 0; i < whole.size(); ++i)
    is_close(mine[i].grad(), own(whole[i].grad().to(at::kDouble)), bound, "gradient " + std::to_string(i));
}

void are_those_of_one_process(World& world) {
  is_that_of_one_process(world, at::kFloat, {}, 2e-6);
  is_that_of_one_process(world, at::kDouble, {}, 1e-14);
  is_that_of_one_process(world, at::kBFloat16, {}, 1e-2);
  is_that_of_one_process(world, at::kFloat, {.heads = 6, .key_heads = 2}, 2e-6);
  // Without LibTorch's own kernel.
  is_that_of_one_process(world, at::kFloat, {.value_width = 8}, 2e-6);
  is_that_of_one_process(world, at::kDouble, {.heads = 3, .key_heads = 1, .value_width = 24}, 1e-14);
}

TEST(RingAttention, OfTwoIsThatOfOneProcess) { in_processes(2, are_those_of_one_process); }
TEST(RingAttention, OfThreeIsThatOfOneProcess) { in_processes(3, are_those_of_one_process); }
TEST(RingAttention, OfFourIsThatOfOneProcess) { in_processes(4, are_those_of_one_process); }

/// In the type that at::scaled_dot_product_attention would take.
TEST(RingAttention, TakesPartInAutocast) {
  in_processes(2, [](World& world) {
    const ops::LayerGroup group = tensor_group(world.all());
    const at::Tensor x = torch::randn({1, 2, 4, 8});
    at::autocast::set_autocast_enabled(at::kCPU, true);
    EXPECT_EQ(ops::ring_attention(x, x, x, group).scalar_type(), at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(ops::ring_attention(x, x, x, group).scalar_type(), at::kFloat);
    const at::Tensor odd = torch::randn({1, 2, 3, 8});
    EXPECT_THROW((void)ops::ring_attention(odd, odd, odd, group), UsageError);
  });
}

/// Forward and backward, beside what is there already.
Bytes peak_of(const ops::LayerGroup& group) {
  memory::DeviceMemory& memory = testing::cpu();
  const at::Tensor x = torch::randn({2, 4, 64, 16}, at::requires_grad());
  const Bytes before = memory.stats().allocated;
  memory.reset_peak();
  ops::ring_attention(x, x, x, group).sum().backward();
  return memory.stats().allocated_peak - before;
}

TEST(RingAttention, TakesAsMuchInEachProcessAndInARehearsal) {
  in_processes(3, [](World& world) {
    const at::Tensor peaks = torch::zeros({3}, at::kLong);
    peaks[world.all()->rank()] = peak_of(tensor_group(world.all()));
    world.all()->run(AllReduce{peaks});
    constexpr Link kLink{.bytes_per_second = 2e9, .seconds_per_message = 50e-6};
    const Rehearsal rehearsal(3, {.within = kLink, .between = kLink, .per_machine = 3}, at::kCPU);
    const Bytes rehearsed = peak_of(tensor_group(rehearsal.world_of(0)->all()));
    for (const int rank : {0, 1, 2}) EXPECT_EQ(peaks[rank].item<Bytes>(), rehearsed) << rank;
  });
}

/// Pieces of the beginning and of the end: all processes have as many pairs of positions.
TEST(RingAttention, HasAsManyPairsOfPositionsInEachProcess) {
  for (const int size : {1, 2, 3, 8}) {
    const std::int64_t length = std::int64_t{4} * size;
    std::int64_t positions = 0;
    for (int rank = 0; rank < size; ++rank) {
      std::int64_t pairs = 0;
      const models::SequencePieces own = models::pieces_of(models::ContextMethod::Ring, length, rank, size);
      for (const std::int64_t first : own.first) {
        for (std::int64_t i = first; i < first + own.each; ++i) pairs += i + 1, ++positions;
      }
      EXPECT_EQ(pairs * size, length * (length + 1) / 2);
    }
    EXPECT_EQ(positions, length);
  }
}

}  // namespace
}  // namespace snug::parallel
