// Plans that leave backward what a lossy codec has left of saved values: other gradients within bounds, and nothing
// else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "snug/memory/codec.h"
#include "snug/memory/held_limit.h"
#include "snug/plan/run/explanation.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/step/legal_actions.h"
#include "snug/record/encodings.h"
#include "snug/snug.h"
#include "tests/base/fault.h"
#include "tests/device/test_device.h"
#include "tests/equivalence/bitwise.h"
#include "tests/replay/lossy_plans.h"

namespace snug {
namespace {

using plan::Codec;
using testing::expect_same;
using testing::following_lossy;
using testing::kLossy;
using testing::Lossy;
using testing::lossy_all;
using testing::recorded_lossy;
using testing::test_memory;

/// What a codec gives back for a tensor.
at::Tensor through(Codec codec, const at::Tensor& tensor) {
  const memory::Codec how = record::codec_of(codec);
  const at::Tensor from = tensor.to(at::kCPU).contiguous(), to = at::empty_like(from);
  const auto bytes = [](const at::Tensor& t) {
    return std::span(static_cast<std::byte*>(t.data_ptr()), static_cast<std::size_t>(t.nbytes()));
  };
  const auto element = static_cast<std::size_t>(from.element_size());
  std::vector<std::byte> encoded(static_cast<std::size_t>(memory::encoded_bytes(how, element, bytes(from))));
  EXPECT_TRUE(memory::encode(how, element, bytes(from), encoded));
  memory::decode(how, element, encoded, bytes(to));
  return to.to(tensor.device());
}

TEST_F(Lossy, GradientsAreThoseOfWhatTheCodecGivesBack) {
  for (const c10::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor a = torch::randn({300, 1000}).to(type), w = torch::rand({300, 1000}).to(type).requires_grad_();
    const auto loss = [&] { return ((a * 2).exp() * w).sum(); };  // whose gradient is what it saves, in every bit
    for (const Codec codec : kLossy) {
      SCOPED_TRACE(static_cast<int>(codec));
      replay::RecordedStep step = recorded_lossy(loss, codec);
      const plan::MemoryPlan plan = lossy_all(step.graph);
      if (type == at::kBFloat16 && codec == Codec::BFloat16) {  // there is nothing to be had
        EXPECT_TRUE(std::ranges::none_of(plan.actions, [](plan::Action action) { return plan::is_lossy(action); }));
        continue;
      }
      Session session = following_lossy(std::move(step), plan);
      for (int i = 0; i < 3; ++i) {
        w.mutable_grad() = at::Tensor();
        test_memory().reset_peak();
        const at::Tensor value = session.backward(loss);
        expect_same({loss().detach()}, {value});
        expect_same({through(codec, (a * 2).exp())}, {w.grad()});
        EXPECT_EQ(session.last_step().lossy_bytes, a.nbytes());
        EXPECT_EQ(session.last_step().compressed_bytes, 0);
        EXPECT_EQ(session.last_step().replayed_ops, 0);
        EXPECT_TRUE(session.last_step().followed_plan);
      }
    }
  }
}

/// Blocks with a skip connection and dropout, whose values several operators save.
struct SkipNet {
  SkipNet() {
    torch::manual_seed(21);
    for (int i = 0; i < 4; ++i) {
      layers->push_back(torch::nn::Linear(256, 256));
      layers->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({256})));
    }
  }
  at::Tensor loss(const at::Tensor& x) {
    torch::manual_seed(3);
    at::Tensor h = x;
    for (std::size_t i = 0; i < layers->size(); i += 2) {
      const at::Tensor n = layers[i + 1]->as<torch::nn::LayerNorm>()->forward(h);
      h = h + torch::dropout(torch::gelu(layers[i]->as<torch::nn::Linear>()->forward(n)) * n.sigmoid(), 0.1, true);
    }
    return h.square().mean();
  }
  std::vector<at::Tensor> gradients() {
    std::vector<at::Tensor> all;
    for (const auto& p : layers->parameters()) all.push_back(p.grad().clone());
    layers->zero_grad();
    return all;
  }
  torch::nn::ModuleList layers;
};

class LossyNet : public Lossy {
 protected:
  std::vector<at::Tensor> run(Session& session) {
    test_memory().reset_peak();
    session.backward([&] { return net.loss(x); });
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    return net.gradients();
  }
  replay::RecordedStep record(Codec codec) {
    return recorded_lossy([&] { return net.loss(x); }, codec);
  }
  SkipNet net;
  const at::Tensor x = torch::randn({512, 256});
};

/// Everything that may be lossy is, and each second of what else there is is made again, or compressed.
plan::MemoryPlan mixed(const plan::StepGraph& graph) {
  plan::MemoryPlan plan = lossy_all(graph);
  for (plan::ValueId v = 0; v < graph.flow.values(); ++v) {
    if (v % 3 != 0 && plan::has_choice(graph, v)) plan.actions[plan::at(v)] = plan::legal_actions(graph, v)[1 + v % 2];
  }
  return plan::predicted(graph, std::move(plan));
}

TEST_F(LossyNet, WhatIsMadeAgainIsMadeOfTheContentsAndPeaksAreThePredictedOnes) {
  for (const Codec codec : {Codec::Int4, Codec::BFloat16}) {
    replay::RecordedStep step = record(codec);
    const plan::MemoryPlan plan = mixed(step.graph);
    const plan::MemoryPlan alone = plan::plan_lossy_alone(step.graph, plan);
    EXPECT_GT(std::ranges::count_if(plan.actions, [](plan::Action a) { return plan::is_lossy(a); }), 5);
    EXPECT_GT(std::ranges::count(plan.actions, plan::kRecompute), 5);
    Session of_alone = following_lossy(step, alone);
    const Bytes before = test_memory().stats().allocated;
    const auto expected = run(of_alone);
    const Bytes gradients = test_memory().stats().allocated - before;  // that are kept beside the step from here on
    EXPECT_EQ(test_memory().stats().allocated_peak, alone.predicted_peak);
    EXPECT_EQ(of_alone.last_step().replayed_ops, 0);
    Session session = following_lossy(step, plan);
    session.verify_replays(VerifyReplay::Values);
    for (int i = 0; i < 3; ++i) {
      if (i == 1) session.verify_replays(VerifyReplay::Off);
      expect_same(expected, run(session));
      EXPECT_GT(session.last_step().replayed_ops, 0);
      if (i > 0) {
        EXPECT_EQ(test_memory().stats().allocated_peak, plan.predicted_peak + gradients);
      }
    }
  }
}

TEST_F(LossyNet, DiffersByLittleAndTheMoreTheFewerBits) {
  net.loss(x).backward();
  const auto plain = net.gradients();
  double before = 0;
  for (const Codec codec : {Codec::None, Codec::BFloat16, Codec::Int8, Codec::Float8, Codec::Int4}) {
    replay::RecordedStep step = record(codec);
    const plan::MemoryPlan plan = lossy_all(step.graph);
    Session session = following_lossy(std::move(step), plan);
    const auto gradients = run(session);
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < plain.size(); ++i) {
      difference += (plain[i] - gradients[i]).square().sum().item<double>();
      size += plain[i].square().sum().item<double>();
    }
    const double relative = std::sqrt(difference / size);
    if (codec == Codec::None) {
      expect_same(plain, gradients);
    } else {
      EXPECT_GT(relative, before) << static_cast<int>(codec);
    }
    before = relative;
  }
  EXPECT_LT(before, 0.2);
}

TEST_F(LossyNet, TakesTheBytesOfItsBits) {
  const auto peak_of = [&](Codec codec) {
    const plan::StepGraph graph = record(codec).graph;
    const plan::MemoryPlan none = plan::make_plan(graph, "none", std::nullopt), plan = lossy_all(graph);
    const plan::Explanation why = plan::explain(graph, plan);
    EXPECT_EQ(why.all.compressed, 0);
    return std::pair(plan.predicted_peak,
                     static_cast<double>(why.all.lossy_encoded) / static_cast<double>(why.all.lossy));
  };
  EXPECT_NEAR(peak_of(Codec::BFloat16).second, 0.5, 0.01);
  EXPECT_NEAR(peak_of(Codec::Float8).second, 8.25 / 32, 0.01);
  EXPECT_NEAR(peak_of(Codec::Int8).second, 8.5 / 32, 0.01);
  EXPECT_NEAR(peak_of(Codec::Int4).second, 4.5 / 32, 0.01);
  EXPECT_LT(peak_of(Codec::Int4).first, peak_of(Codec::Int8).first);
}

TEST_F(LossyNet, KeepsWhatIsNotFinite) {
  replay::RecordedStep step = record(Codec::Int4);
  const plan::MemoryPlan plan = lossy_all(step.graph);
  Session session = following_lossy(std::move(step), plan);
  run(session);
  const Bytes lossy = session.last_step().lossy_bytes;
  x[5][7] = std::numeric_limits<float>::infinity();
  net.loss(x).backward();
  const auto plain = net.gradients();
  expect_same(plain, run(session));  // none of it is a number
  EXPECT_LT(session.last_step().lossy_bytes, lossy / 2);
  x[5][7] = 0;
  run(session);
  EXPECT_EQ(session.last_step().lossy_bytes, lossy);
}

TEST_F(LossyNet, GraphsThatAreKeptGiveTheSameGradientsAgain) {
  replay::RecordedStep step = record(Codec::Int4);
  const plan::MemoryPlan plan = lossy_all(step.graph);
  Session session = following_lossy(std::move(step), plan);
  const auto expected = run(session);
  const std::vector<at::Tensor> parameters = net.layers->parameters();
  std::vector<std::vector<at::Tensor>> twice;
  session.backward([&] {
    const at::Tensor loss = net.loss(x);
    for (int i = 0; i < 2; ++i) twice.push_back(torch::autograd::grad({loss}, parameters, {}, /*retain_graph=*/true));
    return loss;
  });
  for (const auto& gradients : twice) expect_same(expected, gradients);
  expect_same(expected, net.gradients());
}

TEST_F(LossyNet, IsLeftOutWhereTheStepFitsWithoutIt) {
  const auto fitted = [&](Bytes budget, Codec lossy) {
    return fit([&](const at::Tensor& batch) { return net.loss(batch); }, x, {.budget = budget, .lossy = lossy});
  };
  net.loss(x).backward();
  const auto plain = net.gradients();
  const plan::StepGraph graph = record(Codec::Int4).graph;
  const Bytes most = plan::make_plan(graph, "none", std::nullopt).predicted_peak;
  {
    Session session = fitted(2 * most, Codec::Int4);
    session.backward([&](const at::Tensor& batch) { return net.loss(batch); }, x);
    expect_same(plain, net.gradients());
    EXPECT_EQ(session.last_step().lossy_bytes, 0);
  }
}

TEST_F(LossyNet, IsChosenWhereItIsCheaperThanMakingItAgain) {
  replay::RecordedStep step = record(Codec::Int4);
  for (plan::OpInfo& op : step.graph.ops) op.seconds = 1;
  for (plan::ValueInfo& value : step.graph.values) {
    for (plan::Encoding& encoding : value.encodings) encoding.encode_seconds = encoding.decode_seconds = 1e-6;
  }
  plan::StepGraph exact = step.graph;
  for (plan::ValueInfo& value : exact.values)
    std::erase_if(value.encodings, [](const plan::Encoding& e) { return plan::is_lossy(e.codec); });
  const plan::TradeOff with(step.graph), without(exact);
  EXPECT_LE(with.floor(), without.floor());
  const Bytes most = plan::make_plan(exact, "none", std::nullopt).predicted_peak;
  const plan::Budget budget{without.floor() + (most - without.floor()) / 2, 0};
  const plan::MemoryPlan chosen = with.best(step.graph, budget);
  EXPECT_LT(chosen.predicted_seconds, without.best(exact, budget).predicted_seconds);
  const plan::MemoryPlan alone = plan::plan_lossy_alone(step.graph, chosen);
  Session of_alone = following_lossy(step, alone);
  const auto expected = run(of_alone);
  Session session = following_lossy(std::move(step), chosen);
  expect_same(expected, run(session));
  EXPECT_GT(session.last_step().lossy_bytes, 0);
}

TEST_F(LossyNet, AStepThatFollowsNothingElseHasTheSameBits) {
  replay::RecordedStep step = record(Codec::Int4);
  const plan::MemoryPlan plan = mixed(step.graph);
  Session session = following_lossy(std::move(step), plan);
  const auto expected = run(session);
  EXPECT_GT(session.last_step().replayed_ops, 0);
  session.follow(Follow::LossyAlone);
  expect_same(expected, run(session));
  EXPECT_EQ(session.last_step().replayed_ops, 0);
  EXPECT_EQ(session.last_step().compressed_bytes, 0);
  EXPECT_GT(session.last_step().lossy_bytes, 0);
  session.follow(Follow::All);
  expect_same(expected, run(session));
  EXPECT_GT(session.last_step().replayed_ops, 0);
}

TEST_F(LossyNet, StepsOfOtherSizesAreLossyToo) {
  replay::RecordedStep step = record(Codec::Int4);
  const plan::MemoryPlan plan = lossy_all(step.graph);
  Session session = following_lossy(std::move(step), plan);
  const auto expected = run(session);
  const at::Tensor fewer = x.narrow(0, 0, 300);
  for (int i = 0; i < 3; ++i) {
    session.backward([&] { return net.loss(fewer); });
    net.layers->zero_grad();
  }
  EXPECT_EQ(session.last_step().known, 2U);
  const auto lossy = [](const plan::StepGraph& graph) {
    return std::ranges::count_if(graph.values, [](const plan::ValueInfo& value) {
      return std::ranges::any_of(value.encodings, [](const plan::Encoding& e) { return e.codec == Codec::Int4; });
    });
  };
  EXPECT_GT(lossy(session.graph()), 5);
  expect_same(expected, run(session));
}

TEST_F(LossyNet, RefusesWhatItIsNot) {
  const auto step = [&](const at::Tensor& batch) { return net.loss(batch); };
  EXPECT_THROW((void)fit(step, x, {.budget = 1_GiB, .lossy = Codec::Zeros}), UsageError);
}

}  // namespace
}  // namespace snug
