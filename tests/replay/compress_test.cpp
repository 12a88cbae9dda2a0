// Plans that compress what autograd saves, with the same bits: what a ReLU makes, masks, indices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "snug/memory/held_limit.h"
#include "snug/plan/run/explanation.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/step/legal_actions.h"
#include "snug/snug.h"
#include "tests/base/front_end_scope.h"
#include "tests/device/test_device.h"
#include "tests/equivalence/bitwise.h"
#include "tests/memory/translating_front_end.h"
#include "tests/replay/compressing_plan.h"

namespace snug {
namespace {

using testing::compressing_all;
using testing::expect_same;
using testing::test_memory;

/// Convolutions and ReLUs, of which half is zero; a pooling, which has indices; a mask.
struct Pictures {
  Pictures() {
    torch::manual_seed(13);
    for (const int channels : {3, 16, 16, 16, 16, 16, 16, 16})
      layers->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, 16, 3).padding(1)));
  }
  at::Tensor loss(const at::Tensor& x) {
    at::Tensor h = x;
    for (const auto& layer : *layers) h = torch::relu(layer->as<torch::nn::Conv2d>()->forward(h));
    h = torch::max_pool2d(h, 2);
    const at::Tensor mask = h.detach() > 0.1;
    return torch::where(mask, h.square(), h).mean();
  }
  std::vector<at::Tensor> gradients() {
    std::vector<at::Tensor> all;
    for (const auto& p : layers->parameters()) all.push_back(p.grad().clone());
    layers->zero_grad();
    return all;
  }
  std::vector<at::Tensor> plain(const at::Tensor& x) {
    loss(x).backward();
    return gradients();
  }
  torch::nn::ModuleList layers;
};

replay::RecordedStep recorded(Pictures& net, const at::Tensor& x) {
  return replay::record_step([&] { return net.loss(x); }, test_memory());
}

class Compress : public ::testing::Test {
 protected:
  const bool on_the_cpu = testing::test_device().is_cpu();
  [[nodiscard]] Session compressing() const {
    return {step, plan::Planner(step.graph, plan), std::nullopt, test_memory()};
  }

  Pictures net;
  const at::Tensor x = torch::randn({32, 3, 64, 64});
  const std::vector<at::Tensor> expected = net.plain(x);
  replay::RecordedStep step = recorded(net, x);
  const plan::MemoryPlan plan = compressing_all(step.graph);
};

TEST_F(Compress, GivesThePlainBitsInTheBytesThatThePlanSays) {
  std::set<plan::Codec> codecs;
  for (const plan::Action action : plan.actions) codecs.insert(action.codec);
  EXPECT_GE(codecs.size(), on_the_cpu ? 4U : 3U) << "zeros on the CPU, bits, narrow, and what stays";
  const plan::Explanation why = plan::explain(step.graph, plan);
  EXPECT_LT(why.all.encoded, why.all.compressed * 7 / 10);
  const Bytes kept = plan::make_plan(step.graph, "none", std::nullopt).predicted_peak;
  EXPECT_LT(plan.predicted_peak, kept + (on_the_cpu ? 0 : 1)) << "elsewhere it is far from the peak";
  Session session = compressing();
  for (int i = 0; i < 5; ++i) {
    test_memory().reset_peak();
    session.backward([&] { return net.loss(x); });
    expect_same(expected, net.gradients());
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    EXPECT_EQ(session.last_step().replayed_ops, 0);
    const auto compressed = static_cast<double>(why.all.compressed);
    EXPECT_NEAR(static_cast<double>(session.last_step().compressed_bytes), compressed, 0.01 * compressed);
    EXPECT_EQ(test_memory().stats().allocated_peak, plan.predicted_peak);
  }
}

TEST_F(Compress, KeepsWhatDoesNotFitIntoItsBytes) {
  SNUG_ONLY_ON_THE_CPU("a codec of zeros");
  Session session = compressing();
  session.backward([&] { return net.loss(x); });
  net.layers->zero_grad();
  const Bytes all = session.last_step().compressed_bytes;
  const torch::NoGradGuard none;
  for (at::Tensor& p : net.layers->parameters()) {
    if (p.dim() == 1) p.fill_(3);  // nothing is zero behind a ReLU any more
  }
  const torch::AutoGradMode on(true);
  const auto of_those = net.plain(x);
  session.backward([&] { return net.loss(x); });
  expect_same(of_those, net.gradients());
  EXPECT_LT(session.last_step().compressed_bytes, all / 2);
  EXPECT_TRUE(session.last_step().followed_plan);
}

TEST_F(Compress, IsMeasuredOfWhatGoesWhileTheStepIsRecordedUnderALimit) {
  const Bytes floor = plan::Planner(step.graph, "optimal").floor(step.graph);
  const Bytes budget = plan::Budget::for_limit(floor).floor_for(floor);
  EXPECT_LT(budget, plan::make_plan(step.graph, "none", std::nullopt).predicted_peak * 7 / 10);
  replay::RecordedStep under_it = [&] {
    const memory::HeldLimit held(test_memory(), budget);
    test_memory().release_cached();
    return recorded(net, x);
  }();
  std::size_t encodings = 0;
  for (plan::ValueId v = 0; v < step.graph.flow.values(); ++v) {
    const plan::Encodings& all = step.graph.values[plan::at(v)].encodings;
    const plan::Encodings& found = under_it.graph.values[plan::at(v)].encodings;
    ASSERT_EQ(found.size(), all.size()) << "of value " << v;
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(found[i].codec, all[i].codec);
      EXPECT_EQ(found[i].content_bytes, all[i].content_bytes);
    }
    encodings += all.size();
  }
  EXPECT_GE(encodings, on_the_cpu ? 8U : 2U);
  const auto step_of = [&](const at::Tensor& batch) { return net.loss(batch); };
  Session session = fit(step_of, x, {.budget = budget});
  session.backward(step_of, x);
  expect_same(expected, net.gradients());
  EXPECT_TRUE(session.last_step().followed_plan);
}

TEST_F(Compress, GoesWhereMemoryRunsOut) {
  Session session = compressing();
  const Bytes before = test_memory().stats().allocated, limit = before + (plan.predicted_peak - before) * 7 / 10;
  for (const FrontEnd* const front : {&front_end(), &testing::kTranslating}) {
    const testing::FrontEndScope scope(*front);
    const memory::HeldLimit held(test_memory(), limit);
    test_memory().release_cached();
    session.backward([&] { return net.loss(x); });
    expect_same(expected, net.gradients());
    EXPECT_TRUE(session.last_step().followed_plan);
    EXPECT_GT(session.last_step().evictions, 0);
  }
}

TEST_F(Compress, GoesOnWhenStepsOfOtherSizesHaveComeUp) {
  const at::Tensor fewer = x.narrow(0, 0, 20);
  Session session = compressing();
  const auto run = [&](const at::Tensor& batch) {
    test_memory().reset_peak();
    session.backward([&] { return net.loss(batch); });
    return net.gradients();
  };
  expect_same(expected, run(x));
  const Bytes compressed = session.last_step().compressed_bytes;
  EXPECT_GT(compressed, 0);
  for (int i = 0; i < 3; ++i) run(fewer);  // a surprise, an unknown step, a known one
  EXPECT_EQ(session.last_step().known, 2U);
  expect_same(expected, run(x));
  EXPECT_EQ(test_memory().stats().allocated_peak, plan.predicted_peak);
  EXPECT_EQ(session.last_step().compressed_bytes, compressed);
}

TEST_F(Compress, IsNotWhatAStepTakesThatIsRecordedAsItRuns) {
  const auto doubled = [&] { return net.loss(x) * 2; };  // begins as the step that is known
  const replay::RecordedStep other = replay::record_step(doubled, test_memory());
  doubled().backward();
  const auto doubles = net.gradients();
  Session session = compressing();
  for (int i = 0; i < 2; ++i) {  // the first time it is a surprise
    session.backward(doubled);
    expect_same(doubles, net.gradients());
    EXPECT_FALSE(session.last_step().followed_plan);
    EXPECT_GT(session.last_step().compressed_bytes, 0);
    EXPECT_EQ(session.last_step().planned_anew, i == 1);
  }
  const auto activations = [](const plan::StepGraph& graph) {
    return plan::make_plan(graph, "none", std::nullopt).predicted_peak - graph.static_bytes;
  };
  EXPECT_EQ(activations(session.graph()), activations(other.graph));
  for (std::size_t v = 0; v < other.graph.values.size(); ++v)
    EXPECT_EQ(session.graph().values[v].encodings.size(), other.graph.values[v].encodings.size());
}

TEST_F(Compress, IsChosenWhereItIsCheaperThanMakingItAgain) {
  for (plan::OpInfo& op : step.graph.ops) op.seconds = 1;
  for (plan::ValueInfo& value : step.graph.values) {
    for (plan::Encoding& encoding : value.encodings) encoding.encode_seconds = encoding.decode_seconds = 1e-6;
  }
  plan::StepGraph without = step.graph;
  for (plan::ValueInfo& value : without.values) value.encodings.clear();
  const plan::TradeOff both(step.graph), recompute(without);
  EXPECT_LE(both.floor(), recompute.floor());
  const Bytes most = plan::make_plan(without, "none", std::nullopt).predicted_peak;
  const plan::Budget budget{recompute.floor() + (most - recompute.floor()) / 2, 0};
  const plan::MemoryPlan chosen = both.best(step.graph, budget);
  if (!on_the_cpu) GTEST_SKIP() << "what can be compressed there is far from the peak";
  EXPECT_LT(chosen.predicted_seconds, recompute.best(without, budget).predicted_seconds);
  EXPECT_GT(plan::explain(step.graph, chosen).all.compressed, 0);
  Session session(step, plan::Planner(step.graph, chosen), std::nullopt, test_memory());
  test_memory().reset_peak();
  session.backward([&] { return net.loss(x); });
  expect_same(expected, net.gradients());
  EXPECT_GT(session.last_step().compressed_bytes, 0);
  EXPECT_LE(test_memory().stats().allocated_peak, budget.limit);
}

}  // namespace
}  // namespace snug
