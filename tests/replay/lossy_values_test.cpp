// What lossy codecs are let near: saved tensors whose operators do well with numbers nearby.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"
#include "tests/replay/lossy_plans.h"

namespace snug {
namespace {

using LossyValues = testing::Lossy;
using plan::Codec;
using testing::expect_same;
using testing::following_lossy;
using testing::kLossy;
using testing::lossy_all;
using testing::recorded_lossy;

/// What backward cannot do with numbers nearby, each of a tensor of numbers from very small to large.
const std::vector<std::pair<const char*, std::function<at::Tensor(const at::Tensor&)>>>& delicate() {
  static const std::vector<std::pair<const char*, std::function<at::Tensor(const at::Tensor&)>>> all{
      {"amax", [](const at::Tensor& h) { return h.amax(1); }},
      {"min", [](const at::Tensor& h) { return h.min(); }},
      {"max", [](const at::Tensor& h) { return std::get<0>(h.max(0)); }},
      {"log", [](const at::Tensor& h) { return h.log(); }},
      {"sqrt", [](const at::Tensor& h) { return h.sqrt() + 0; }},
      {"reciprocal", [](const at::Tensor& h) { return h.reciprocal(); }},
      {"divided by", [](const at::Tensor& h) { return (1 + h.detach()) / h; }},
      {"power", [](const at::Tensor& h) { return h.pow(-0.5); }},
      {"norm", [](const at::Tensor& h) { return h.norm(2, 1); }},
      {"logsumexp", [](const at::Tensor& h) { return h.logsumexp(1); }},
      {"prod", [](const at::Tensor& h) { return (h.narrow(1, 0, 4) + 0).prod(1); }}};
  return all;
}

TEST_F(LossyValues, WhatBackwardDividesByOrComparesIsKept) {
  const at::Tensor w = (torch::randn({300, 1000}) * 4).requires_grad_();
  for (const auto& [name, of] : delicate()) {
    const auto loss = [&] {
      const at::Tensor h = (w * 2).exp();
      return of(h).mean() + (h * w).mean();
    };
    w.mutable_grad() = at::Tensor();
    loss().backward();
    const at::Tensor plain = w.grad().clone();
    ASSERT_TRUE(plain.isfinite().all().item<bool>()) << name;
    for (const Codec codec : kLossy) {
      replay::RecordedStep step = recorded_lossy(loss, codec);
      const plan::MemoryPlan plan = lossy_all(step.graph);
      Session session = following_lossy(std::move(step), plan);
      w.mutable_grad() = at::Tensor();
      session.backward(loss);
      EXPECT_TRUE(w.grad().isfinite().all().item<bool>()) << name << ", codec " << static_cast<int>(codec);
    }
  }
}

/// Saves what it reads, or what it makes, and divides by it.
struct ByHand : torch::autograd::Function<ByHand> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, bool saves_result) {
    at::Tensor y = x * 2;
    context->save_for_backward({saves_result ? y : x});
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] / context->get_saved_variables()[0], at::Tensor()};
  }
};

TEST_F(LossyValues, WhatIsSavedByAFunctionThatDifferentiatesForItselfIsKept) {
  const at::Tensor w = torch::rand({300, 1000}).requires_grad_(), v = torch::rand({1000, 64}).requires_grad_();
  for (const bool saves_result : {false, true}) {
    const auto loss = [&] { return ByHand::apply((w * 2).exp(), saves_result).mm(v).sum(); };
    const plan::StepGraph graph = recorded_lossy(loss, Codec::Int4).graph;
    for (plan::ValueId value = 0; value < graph.flow.values(); ++value) {
      const plan::OpId op = graph.flow.producer(value);
      if (op == plan::kNoOp || !graph.values[plan::at(value)].saved) continue;
      const bool by_hand = graph.ops[plan::at(op)].name.starts_with(saves_result ? "aten::mul" : "aten::exp");
      const bool lossy = plan::find_encoding(graph.values[plan::at(value)].encodings, Codec::Int4) != nullptr;
      EXPECT_FALSE(by_hand && lossy) << graph.ops[plan::at(op)].name;
    }
  }
}

TEST_F(LossyValues, WhatAttentionReadsIsLeftToBf16AloneAndAReLUsResultToNoLevels) {
  const at::Tensor x = torch::randn({4, 8, 128, 64});
  const at::Tensor w = torch::randn({64, 64}).requires_grad_();
  const auto attention = [&] {
    const at::Tensor h = torch::gelu(x.matmul(w));
    return at::scaled_dot_product_attention(h.sin(), h.cos(), h).matmul(w).mean();
  };
  const auto relu = [&] { return torch::relu(x.matmul(w)).matmul(w).mean(); };
  const auto left = [&](const replay::Forward& loss, Codec codec, const std::string& made_by) {
    const plan::StepGraph graph = recorded_lossy(loss, codec).graph;
    for (plan::ValueId value = 0; value < graph.flow.values(); ++value) {
      const plan::OpId op = graph.flow.producer(value);
      if (op != plan::kNoOp && graph.ops[plan::at(op)].name == made_by &&
          plan::find_encoding(graph.values[plan::at(value)].encodings, codec) != nullptr)
        return true;
    }
    return false;
  };
  for (const Codec codec : kLossy) {
    EXPECT_EQ(left(attention, codec, "aten::sin"), codec == Codec::BFloat16) << static_cast<int>(codec);
    EXPECT_TRUE(left(attention, codec, "aten::_scaled_dot_product_flash_attention_for_cpu")) << static_cast<int>(codec);
    EXPECT_EQ(left(relu, codec, "aten::relu"), codec == Codec::BFloat16 || codec == Codec::Float8)
        << static_cast<int>(codec);
  }
}

TEST_F(LossyValues, AResultThatFillsAPartOfItsStorageIsKept) {
  const at::Tensor x = torch::randn({300, 1000}), w = torch::randn({1000}, at::requires_grad());
  const auto loss = [&] { return at::mse_loss(x * w, x).sin(); };  // makes a number in memory for 300,000
  ASSERT_GT(at::mse_loss(x * w, x).storage().nbytes(), 300'000);
  for (const Codec codec : kLossy) {
    const plan::StepGraph graph = recorded_lossy(loss, codec).graph;
    for (plan::ValueId value = 0; value < graph.flow.values(); ++value) {
      const plan::OpId op = graph.flow.producer(value);
      if (op != plan::kNoOp && graph.ops[plan::at(op)].name == "aten::mse_loss") {
        EXPECT_TRUE(graph.values[plan::at(value)].saved);
        EXPECT_TRUE(graph.values[plan::at(value)].encodings.empty()) << static_cast<int>(codec);
      }
    }
  }
}

/// Smooth ones, and those whose slope jumps somewhere.
TEST_F(LossyValues, NoActivationWhoseSlopeJumpsIsLeftToLevels) {
  using Of = at::Tensor (*)(const at::Tensor&);
  const std::vector<std::pair<const char*, Of>> activations{
      {"relu", [](const at::Tensor& x) { return torch::relu(x); }},
      {"leaky_relu", [](const at::Tensor& x) { return at::leaky_relu(x); }},
      {"relu6", [](const at::Tensor& x) { return at::relu6(x); }},
      {"hardtanh", [](const at::Tensor& x) { return at::hardtanh(x); }},
      {"hardsigmoid", [](const at::Tensor& x) { return at::hardsigmoid(x); }},
      {"hardswish", [](const at::Tensor& x) { return at::hardswish(x); }},
      {"threshold", [](const at::Tensor& x) { return at::threshold(x, 0.5, 0); }},
      {"selu", [](const at::Tensor& x) { return at::selu(x); }},
      {"celu", [](const at::Tensor& x) { return at::celu(x, 2); }},
      {"elu", [](const at::Tensor& x) { return at::elu(x, 2); }},
      {"gelu", [](const at::Tensor& x) { return at::gelu(x); }},
      {"silu", [](const at::Tensor& x) { return at::silu(x); }},
      {"mish", [](const at::Tensor& x) { return at::mish(x); }},
      {"softplus", [](const at::Tensor& x) { return at::softplus(x); }},
      {"tanh", [](const at::Tensor& x) { return at::tanh(x); }},
      {"sigmoid", [](const at::Tensor& x) { return at::sigmoid(x); }}};
  const at::Tensor w = torch::linspace(-8, 8, 400'000).requires_grad_();
  for (const auto& [name, of] : activations) {
    w.mutable_grad() = at::Tensor();
    of(w).sum().backward();
    const bool jumps = w.grad().diff().abs().max().item<float>() > 0.01;
    const auto loss = [&, of = of] { return of(w * 1).sum(); };
    const plan::StepGraph graph = recorded_lossy(loss, Codec::Int4).graph;
    const bool left = std::ranges::any_of(graph.values, [](const plan::ValueInfo& value) {
      return plan::find_encoding(value.encodings, Codec::Int4) != nullptr;
    });
    EXPECT_FALSE(jumps && left) << name;
  }
}

TEST_F(LossyValues, WhatReachesTheLossByAGradientInTheStepIsKept) {
  const at::Tensor w = torch::randn({300, 1000}).requires_grad_();
  const auto loss = [&] {
    const at::Tensor h = (w * 2).sigmoid();
    const at::Tensor slope = torch::autograd::grad({(h * h).sum()}, {w}, {}, true, /*create_graph=*/true)[0];
    return slope.square().mean() + h.mean();
  };
  const at::Tensor expected = loss().detach();
  replay::RecordedStep step = recorded_lossy(loss, Codec::Int4);
  const plan::MemoryPlan plan = lossy_all(step.graph);
  Session session = following_lossy(std::move(step), plan);
  for (int i = 0; i < 2; ++i) expect_same({expected}, {session.backward(loss)});
}

TEST_F(LossyValues, NumbersThatAreReadAsOthersAreKept) {
  const at::Tensor a = torch::randn({200, 1000}), w = torch::rand({200, 1000}).requires_grad_();
  const auto of_floats = [&] { return ((a * 2).exp() * w).sum(); };
  const auto of_halves_too = [&] {
    const at::Tensor h = (a * 2).exp();
    const at::Tensor halves = h.view(at::kBFloat16).narrow(1, 0, 1000);
    return (h * w).sum() + (halves * w.to(at::kBFloat16)).nan_to_num(0, 0, 0).sum().to(at::kFloat) * 1e-9;
  };
  const auto lossy_floats = [&](const replay::Forward& loss) {
    return std::ranges::count_if(recorded_lossy(loss, Codec::Int4).graph.values, [](const plan::ValueInfo& value) {
      return std::ranges::any_of(value.encodings,
                                 [](const plan::Encoding& e) { return plan::is_lossy(e.codec) && e.element == 4; });
    });
  };
  EXPECT_EQ(lossy_floats(of_floats), 1);
  EXPECT_EQ(lossy_floats(of_halves_too), 0);
}

}  // namespace
}  // namespace snug
