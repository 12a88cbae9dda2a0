#include "snug/ops/attention.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <vector>

#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/models/autocast.h"
#include "snug/replay/region.h"
#include "tests/equivalence/bitwise.h"

namespace snug::ops {
namespace {

using snug::testing::same_bits;

struct Sizes {
  std::int64_t batch, heads, queries, keys, width;
  std::int64_t key_heads = 0;  ///< 0: as many as heads
};

std::int64_t heads_of(const Sizes& s, std::size_t part) { return part > 0 && s.key_heads > 0 ? s.key_heads : s.heads; }

/// Query, key and value as models have them: parts of one product, heads beside each other.
std::vector<at::Tensor> leaves(const Sizes& s, at::ScalarType type) {
  torch::manual_seed(s.queries);
  std::vector<at::Tensor> all;
  for (const std::int64_t length : {s.queries, s.keys, s.keys}) {
    const std::int64_t width = heads_of(s, all.size()) * s.width;
    all.push_back(torch::randn({s.batch, length, width}).to(type).requires_grad_());
  }
  return all;
}

std::vector<at::Tensor> split(const std::vector<at::Tensor>& all, const Sizes& s) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& t : all) {
    parts.push_back(t.unflatten(2, {heads_of(s, parts.size()), s.width}).transpose(1, 2));
  }
  return parts;
}

template <typename Attention>
std::vector<at::Tensor> run(const Attention& attention, const Sizes& s, at::ScalarType type) {
  const auto in = leaves(s, type);
  const auto p = split(in, s);
  const at::Tensor out = attention(p[0], p[1], p[2]);
  torch::manual_seed(7);
  out.backward(torch::randn({s.batch, s.queries, s.heads, s.width}).to(type).transpose(1, 2));
  return {out.detach(), in[0].grad(), in[1].grad(), in[2].grad()};
}

double attention_tolerance(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return 1e-12;
    case at::kFloat:
      return 1e-5;
    case at::kHalf:
      return 4e-3;
    default:
      return 3e-2;
  }
}

TEST(Attention, IsLibTorchsButForRounding) {
  // The last are of several groups of rows, and of heads.
  for (const Sizes& s : {Sizes{2, 3, 64, 64, 32}, Sizes{1, 2, 33, 33, 20}, Sizes{1, 1, 1, 1, 8},
                         Sizes{2, 2, 17, 40, 16}, Sizes{2, 6, 150, 150, 16, 2}, Sizes{1, 4, 20, 50, 16, 1},
                         Sizes{1, 8, 700, 700, 64, 4}, Sizes{1, 3, 140, 9000, 16, 1}}) {
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      for (const bool is_causal : {false, true}) {
        if (is_causal && s.queries != s.keys) continue;
        SCOPED_TRACE(::testing::Message() << s.queries << "x" << s.keys << " " << type << " causal " << is_causal);
        const auto found = run(
            [&](const auto& q, const auto& k, const auto& v) {
              return attention(q, k, v, is_causal ? AttentionMask::Causal : AttentionMask::None);
            },
            s, type);
        const auto expected = run(
            [&](const auto& q, const auto& k, const auto& v) {
              return at::scaled_dot_product_attention(q, k, v, {}, 0, is_causal, std::nullopt, s.key_heads > 0);
            },
            s, type);
        EXPECT_EQ(found[0].strides(), expected[0].strides()) << "heads are merged without a copy";
        EXPECT_TRUE(type != at::kHalf || same_bits(found[0], expected[0])) << "it is LibTorch's";
        for (std::size_t i = 0; i < 4; ++i) {
          const at::Tensor reference = expected[i].to(at::kDouble);
          const double scale = std::max(reference.abs().max().item<double>(), 0.2);
          EXPECT_LE((found[i].to(at::kDouble) - reference).abs().max().item<double>(),
                    attention_tolerance(type) * scale)
              << i;
        }
      }
    }
  }
}

TEST(Attention, HasNoLargerErrorsThanItsRoundingsMake) {
  const Sizes s{2, 4, 300, 300, 64};
  const auto ours = [](const auto& q, const auto& k, const auto& v) {
    return attention(q, k, v, AttentionMask::Causal);
  };
  const auto theirs = [](const auto& q, const auto& k, const auto& v) {
    return at::scaled_dot_product_attention(q, k, v, {}, 0, true);
  };
  // bf16 inputs in fp64.
  const auto exact = [&](const auto& q, const auto& k, const auto& v) {
    return at::scaled_dot_product_attention(q.to(at::kDouble), k.to(at::kDouble), v.to(at::kDouble), {}, 0, true)
        .to(at::kBFloat16);
  };
  const auto a = run(ours, s, at::kBFloat16), b = run(theirs, s, at::kBFloat16), c = run(exact, s, at::kBFloat16);
  for (std::size_t i = 0; i < 4; ++i) {
    const auto error = [&](const at::Tensor& t) { return (t - c[i]).to(at::kDouble).norm().template item<double>(); };
    EXPECT_LE(error(a[i]), (i == 0 ? 2 : 1.7) * error(b[i])) << i;
  }
}

TEST(Attention, GradientsAreThoseOfItsDifferences) {
  for (const Sizes& s : {Sizes{1, 2, 5, 5, 8}, Sizes{1, 4, 5, 5, 8, 2}, Sizes{1, 2, 3, 7, 8}}) {
    const auto mask = s.queries == s.keys ? AttentionMask::Causal : AttentionMask::None;
    const auto in = leaves(s, at::kDouble);
    const at::Tensor weights = torch::randn({s.batch, s.heads, s.queries, s.width}, at::kDouble);
    const auto loss = [&](const std::vector<at::Tensor>& all) {
      const auto p = split(all, s);
      return (attention(p[0], p[1], p[2], mask) * weights).sum();
    };
    loss(in).backward();
    constexpr double kStep = 1e-6;
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::int64_t j = 0; j < in[i].numel(); ++j) {
        std::vector<at::Tensor> up, down;
        for (const at::Tensor& t : in) up.push_back(t.detach().clone()), down.push_back(t.detach().clone());
        up[i].view(-1)[j] += kStep;
        down[i].view(-1)[j] -= kStep;
        const double slope = (loss(up) - loss(down)).item<double>() / (2 * kStep);
        EXPECT_NEAR(in[i].grad().view(-1)[j].item<double>(), slope, 1e-7) << i << " " << j;
      }
    }
  }
}

TEST(Attention, HasTheTypeOfAutocast) {
  const Sizes s{1, 2, 32, 32, 16};
  const auto p = split(leaves(s, at::kFloat), s);
  const at::Tensor cast =
      attention(p[0].to(at::kBFloat16), p[1].to(at::kBFloat16), p[2].to(at::kBFloat16), AttentionMask::Causal);
  const models::AutocastScope autocast(at::kBFloat16, c10::kCPU);
  const at::Tensor out = attention(p[0], p[1], p[2], AttentionMask::Causal);
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(same_bits(out, cast));
}

TEST(Attention, IsNotRoundedByAnAutocastAroundItsBackwardPass) {
  const Sizes s{1, 2, 40, 40, 16};
  const auto gradient = [&](bool inside) {
    const auto in = leaves(s, at::kFloat);
    const auto p = split(in, s);
    const at::Tensor sum = attention(p[0], p[1], p[2], AttentionMask::Causal).square().sum();
    const models::AutocastScope autocast(inside ? std::optional(at::kBFloat16) : std::nullopt, c10::kCPU);
    sum.backward();
    return in[1].grad();
  };
  EXPECT_TRUE(same_bits(gradient(true), gradient(false)));
}

TEST(Attention, NeverHasAllProbabilities) {
  const Sizes s{1, 4, 2048, 2048, 16};
  const auto in = leaves(s, at::kFloat);
  const auto p = split(in, s);
  auto& memory = memory::device_memory(c10::kCPU);
  memory.reset_peak();
  const Bytes before = memory.stats().allocated;
  attention(p[0], p[1], p[2], AttentionMask::Causal).sum().backward();
  EXPECT_LT(memory.stats().allocated_peak - before, 14_MiB);
  EXPECT_GT(s.heads * s.queries * s.keys * 4, 60_MiB);
}

TEST(Attention, IsReplayed) {
  const Sizes s{2, 3, 64, 64, 32};
  const auto gradients = [&](bool replays) {
    const auto in = leaves(s, at::kBFloat16);
    const auto loss = [&] {
      const auto p = split({in[0] * 2, in[1] * 3, in[2] * 0.5}, s);
      return attention(p[0], p[1], p[2], AttentionMask::Causal).to(at::kFloat).square().sum();
    };
    std::int64_t ops = 0;
    if (replays) {
      Region region(Recompute{});
      loss().backward();
      ops = region.replayed_ops();
      EXPECT_GE(ops, 3);
    } else {
      loss().backward();
    }
    return std::vector{in[0].grad(), in[1].grad(), in[2].grad()};
  };
  const auto found = gradients(true), expected = gradients(false);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(found[i], expected[i]));
}

TEST(Attention, IsDifferentiableOnce) {
  const Sizes s{1, 1, 4, 4, 8};
  const auto in = leaves(s, at::kFloat);
  const auto p = split(in, s);
  const at::Tensor sum = attention(p[0], p[1], p[2], AttentionMask::Causal).sum();
  EXPECT_THROW(torch::autograd::grad({sum}, {in[0]}, {}, true, /*create_graph=*/true), Error);
}

}  // namespace
}  // namespace snug::ops
