// Weights that are gathered for a module's forward and backward pass, and freed in between, as FSDP2 has them: no plan,
// and no eviction, has anything made again where its weights are not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "snug/plan/run/presets.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"
#include "tests/equivalence/gathered_weights.h"

namespace snug {
namespace {

using testing::expect_same;
using testing::GatheredWeights;
using testing::test_memory;

constexpr Bytes kReserve = 320_KiB;  // the allocator's, and something
constexpr std::int64_t kWidth = 64, kInner = 128, kRows = 256;

/// Blocks of x + dropout(down(gelu(up(norm(x))))), whose weights are one group each, or whose inner layers are groups
/// of their own; a head at the end.
struct GatheredNet {
  explicit GatheredNet(bool in_one_another) : nested(in_one_another) {
    torch::manual_seed(1);
    for (int b = 0; b < 4; ++b) {
      const at::Tensor up = at::randn({kInner, kWidth}) / 8, down = at::randn({kWidth, kInner}) / 8;
      const at::Tensor scale = at::rand({kWidth}) + 0.5, shift = at::randn({kWidth});
      if (nested) {
        outer.push_back(std::make_unique<GatheredWeights>(std::vector{scale, shift}));
        inner.push_back(std::make_unique<GatheredWeights>(std::vector{up, down}));
      } else {
        outer.push_back(std::make_unique<GatheredWeights>(std::vector{scale, shift, up, down}));
      }
    }
    head = (at::randn({16, kWidth}) / 8).requires_grad_();
  }

  at::Tensor block(std::size_t b, const at::Tensor& x) {
    GatheredWeights& own = *outer[b];
    return own.around(x, [&](const at::Tensor& in) {
      const at::Tensor normed = at::layer_norm(in, {kWidth}, own[0], own[1]);
      const auto layers = [](const GatheredWeights& w, std::size_t first, const at::Tensor& y) {
        return at::linear(at::gelu(at::linear(y, w[first])), w[first + 1]);
      };
      const at::Tensor changed =
          nested ? inner[b]->around(normed, [&](const at::Tensor& y) { return layers(*inner[b], 0, y); })
                 : layers(own, 2, normed);
      return in + at::dropout(changed, 0.1, /*train=*/true);
    });
  }
  at::Tensor loss(const at::Tensor& batch) {
    at::Tensor x = batch;
    for (std::size_t b = 0; b < outer.size(); ++b) x = block(b, x * 1.5);  // by nobody's weights
    return at::linear(x, head).square().mean();
  }

  [[nodiscard]] std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> all{head};
    for (const auto* groups : {&outer, &inner}) {
      for (const auto& group : *groups) all.insert(all.end(), group->all().begin(), group->all().end());
    }
    return all;
  }
  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& p : parameters()) {
      all.push_back(p.grad().clone());
      p.mutable_grad().reset();
    }
    return all;
  }

  bool nested;
  std::vector<std::unique_ptr<GatheredWeights>> outer, inner;
  at::Tensor head;
};

at::Tensor batch_of(std::int64_t rows) {
  torch::manual_seed(2);
  return at::randn({rows, kWidth});
}

std::vector<at::Tensor> plain(GatheredNet& net, const at::Tensor& batch) {
  torch::manual_seed(7);
  net.loss(batch).backward();
  return net.gradients();
}

class GatheredWeightsUnder : public ::testing::TestWithParam<bool> {};

TEST_P(GatheredWeightsUnder, EveryPlanTheGradientsAreTheSame) {
  GatheredNet net(GetParam());
  const at::Tensor batch = batch_of(kRows);
  const auto expected = plain(net, batch);
  const auto step = [&](const at::Tensor& b) { return net.loss(b); };
  const plan::StepGraph graph = replay::record_step([&] { return step(batch); }, test_memory()).graph;
  const plan::Planner planner(graph, "optimal");
  const Bytes most = plan::plan_none(graph).predicted_peak, floor = planner.floor(graph);
  ASSERT_LT(floor, most * 8 / 10);
  std::int64_t replayed = 0;
  for (const double share : {1.0, 0.75, 0.5, 0.25, 0.0}) {
    const Bytes budget = floor + static_cast<Bytes>(share * static_cast<double>(most - floor)) + kReserve;
    SCOPED_TRACE(format_bytes(budget));
    Session session = fit(step, batch, {.budget = budget, .device = testing::test_device()});
    for (int i = 0; i < 2; ++i) {
      torch::manual_seed(7);
      test_memory().reset_peak();
      session.backward([&] { return step(batch); });
      EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
      EXPECT_EQ(session.last_step().evictions, 0);
      EXPECT_LE(testing::settled(test_memory()), budget);
      EXPECT_EQ(test_memory().stats().allocated_peak, session.plan().predicted_peak);
      expect_same(expected, net.gradients());
    }
    // Not in order: a plan for less memory may replay fewer operators that take longer, as measured.
    replayed = session.last_step().replayed_ops;
    if (share == 1.0) {
      EXPECT_EQ(replayed, 0);
    } else {
      EXPECT_GT(replayed, 0);
    }
  }
  EXPECT_GT(replayed, 8);
}

/// A larger batch than any that is known: evictions alone hold the cap.
TEST_P(GatheredWeightsUnder, EvictionsTheGradientsAreTheSame) {
  GatheredNet net(GetParam());
  const at::Tensor batch = batch_of(kRows), larger = batch_of(kRows * 3 / 2);
  const auto expected = plain(net, larger);
  const auto step = [&](const at::Tensor& b) { return net.loss(b); };
  const plan::StepGraph graph = replay::record_step([&] { return step(batch); }, test_memory()).graph;
  const Bytes budget = plan::plan_none(graph).predicted_peak;
  Session session = fit(step, batch, {.budget = budget, .device = testing::test_device()});
  torch::manual_seed(7);
  session.backward([&] { return step(larger); });
  EXPECT_FALSE(session.last_step().followed_plan);
  EXPECT_GT(session.last_step().evictions, 0);
  EXPECT_GT(session.last_step().replayed_ops, 0);
  expect_same(expected, net.gradients());
}

/// What a block makes is read where its weights are not there any more: it is kept, whatever plans say. The rest is
/// not.
TEST_P(GatheredWeightsUnder, APlanKeepsWhatLeavesAGroup) {
  GatheredNet net(GetParam());
  const at::Tensor batch = batch_of(kRows);
  const plan::StepGraph graph = replay::record_step([&] { return net.loss(batch); }, test_memory()).graph;
  int kept = 0, of_inner = 0, in_groups = 0;
  for (plan::OpId op = 0; op < graph.flow.ops(); ++op) {
    const std::string& name = graph.ops[plan::at(op)].name;
    in_groups += graph.flow.group(op) >= 0;
    for (const plan::Output& out : graph.flow.outputs(op)) {
      if (graph.values[plan::at(out.value)].must != plan::Must::Keep) continue;
      (name == "aten::add.Tensor" ? kept : of_inner) += 1;
    }
  }
  EXPECT_EQ(kept, GetParam() ? 0 : 4) << "the sum at the end of each block";
  EXPECT_EQ(of_inner, GetParam() ? 4 : 0) << "the last product in each inner group";
  EXPECT_EQ(in_groups, 4 * 3) << "the norm and two products";
}

/// Once per pass, whatever is made again: that is for whoever frees them.
TEST_P(GatheredWeightsUnder, APlanNothingIsGatheredThatWasNotBefore) {
  GatheredNet net(GetParam());
  const at::Tensor batch = batch_of(kRows);
  (void)plain(net, batch);
  const int once = net.outer[1]->gathered();
  const auto step = [&](const at::Tensor& b) { return net.loss(b); };
  const plan::StepGraph graph = replay::record_step([&] { return step(batch); }, test_memory()).graph;
  const Bytes floor = plan::Planner(graph, "optimal").floor(graph);
  Session session = fit(step, batch, {.budget = floor + kReserve, .device = testing::test_device()});
  const int before = net.outer[1]->gathered();
  session.backward([&] { return step(batch); });
  EXPECT_GT(session.last_step().replayed_ops, 0);
  EXPECT_EQ(net.outer[1]->gathered() - before, once);
}

INSTANTIATE_TEST_SUITE_P(Groups, GatheredWeightsUnder, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "OneInAnother" : "OneBehindAnother"; });

/// Somebody frees weights without the marks that tell of it.
TEST(GatheredWeights, ThatNobodyTellsOfAreRefused) {
  const at::Tensor weight = at::randn({kWidth, kWidth}).requires_grad_(), batch = batch_of(8);
  const auto step = [&] {
    const at::Tensor out = at::linear(batch, weight).square().mean();
    weight.storage().unsafeGetStorageImpl()->set_nbytes(0);
    return out;
  };
  const std::size_t bytes = weight.storage().nbytes();
  EXPECT_THAT([&] { (void)replay::record_step(step, test_memory()); },
              ::testing::ThrowsMessage<UsageError>(::testing::HasSubstr("has been freed since an operator read it")));
  weight.storage().unsafeGetStorageImpl()->set_nbytes(bytes);
}

}  // namespace
}  // namespace snug
