// Optimizers against their formulas in doubles.
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/optim/adamw.h"
#include "snug/optim/clipping.h"
#include "snug/optim/sgd.h"
#include "tests/base/fault.h"

namespace snug::optim {
namespace {

TEST(AdamW, FollowsTheFormula) {
  torch::manual_seed(1);
  at::Tensor weight = torch::randn({5, 3}).requires_grad_(), bias = torch::randn({3}).requires_grad_();
  const AdamWOptions options{.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  AdamW optimizer({weight, bias}, options);
  at::Tensor expected = weight.detach().to(at::kDouble), m = at::zeros_like(expected), v = at::zeros_like(expected);
  at::Tensor plain = bias.detach().to(at::kDouble), bm = at::zeros_like(plain), bv = at::zeros_like(plain);
  const double rate = 1e-2;
  const auto update = [&](at::Tensor& p, at::Tensor& first, at::Tensor& second, const at::Tensor& g, double decay,
                          int t) {
    p = p * (1 - rate * decay);
    first = options.beta1 * first + (1 - options.beta1) * g;
    second = options.beta2 * second + (1 - options.beta2) * g * g;
    const at::Tensor hat = first / (1 - std::pow(options.beta1, t));
    p = p - rate * hat / ((second / (1 - std::pow(options.beta2, t))).sqrt() + options.epsilon);
  };
  for (int t = 1; t <= 4; ++t) {
    weight.mutable_grad() = torch::randn({5, 3});
    bias.mutable_grad() = torch::randn({3});
    update(expected, m, v, weight.grad().to(at::kDouble), options.weight_decay, t);
    update(plain, bm, bv, bias.grad().to(at::kDouble), 0.0, t);  // not decayed
    optimizer.step(rate);
  }
  EXPECT_TRUE(at::allclose(weight.detach().to(at::kDouble), expected, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(bias.detach().to(at::kDouble), plain, 1e-5, 1e-6));
  optimizer.zero_grad();
  EXPECT_FALSE(weight.grad().defined());
}

TEST(AdamW, MakesItsStateAtOnceAndUnderItsTag) {
  auto& memory = memory::device_memory(c10::kCPU);
  const at::Tensor weight = torch::randn({256, 256}).requires_grad_();
  const auto before = memory.stats().by_tag[static_cast<std::size_t>(memory::Tag::Optimizer)];
  const AdamW optimizer({weight}, {});
  const auto after = memory.stats().by_tag[static_cast<std::size_t>(memory::Tag::Optimizer)];
  EXPECT_EQ(after - before, 2 * memory.rounded(256 * 256 * 4) + memory.rounded(4));
  const at::Tensor few = torch::randn({256, 256}).to(at::kBFloat16).requires_grad_();
  const AdamW with_masters({few}, {});
  const auto more = memory.stats().by_tag[static_cast<std::size_t>(memory::Tag::Optimizer)];
  EXPECT_EQ(more - after, 3 * memory.rounded(256 * 256 * 4) + memory.rounded(4)) << "two moments and a master, in fp32";
}

class AdamWOf : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Types, AdamWOf, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& type) { return std::string(c10::toString(type.param)); });

TEST_P(AdamWOf, ARehearsalChangesNothingButTheGradients) {
  torch::manual_seed(2);
  at::Tensor weight = torch::randn({64, 64}).to(GetParam()), bias = torch::randn({64}).to(GetParam());
  bias[3] = -0.0F;
  weight.requires_grad_();
  bias.requires_grad_();
  AdamW optimizer({weight, bias}, {.weight_decay = 0.5});
  weight.mutable_grad() = torch::randn({64, 64}).to(GetParam());
  bias.mutable_grad() = torch::full({64}, std::numeric_limits<float>::quiet_NaN()).to(GetParam());
  const auto bits = [](const at::Tensor& t) {
    return t.detach().clone().view(t.element_size() == 4 ? at::kInt : at::kShort);
  };
  std::vector<at::Tensor> written = optimizer.state();
  written.push_back(weight);
  written.push_back(bias);
  std::vector<at::Tensor> before;
  for (const at::Tensor& t : written) before.push_back(bits(t));
  optimizer.rehearse();
  for (std::size_t i = 0; i < written.size(); ++i) EXPECT_TRUE(at::equal(bits(written[i]), before[i])) << i;
  EXPECT_EQ(weight.grad().abs().sum().item<float>(), 0);
}

/// The same noisy gradients for all: of a least-squares fit to `target`, for the weights as they are in fp32.
std::vector<at::Tensor> fit(at::ScalarType dtype, double rate, int steps) {
  torch::manual_seed(3);
  const at::Tensor begin = torch::randn({32, 16}).mul_(0.1).to(at::kBFloat16), noise = torch::randn({steps, 32, 16});
  const at::Tensor weight = begin.to(dtype, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
  AdamW optimizer({weight}, {.weight_decay = 0.1});
  for (int i = 0; i < steps; ++i) {
    weight.mutable_grad() = (noise[i] * 0.1 + 1).to(dtype);
    optimizer.step(rate);
    optimizer.zero_grad();
  }
  std::vector<at::Tensor> found{begin, weight.detach()};
  for (const auto& [name, tensor] : optimizer.named_state({"w"})) {
    if (name.starts_with("master.") || name.starts_with("exp_avg.")) found.push_back(tensor);
  }
  return found;
}

TEST(AdamW, SmallUpdatesMoveWeightsOfFewBitsAsTheyMoveThoseInFp32) {
  constexpr double kRate = 2e-5;
  constexpr int kSteps = 200;
  const auto whole = fit(at::kFloat, kRate, kSteps);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const auto few = fit(dtype, kRate, kSteps);
    ASSERT_EQ(few.size(), 4U);  // with first moments and masters
    EXPECT_EQ(few[1].scalar_type(), dtype);
    EXPECT_EQ(few[2].scalar_type(), at::kFloat);
    EXPECT_EQ(few[3].scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(few[1], few[3].to(dtype))) << "a weight is its master, rounded";
    // Only the gradients were rounded, to 8 bits or more; two hundred steps go some 4e-3.
    EXPECT_TRUE(at::allclose(few[3], whole[1], 0, 4e-5)) << dtype;
    EXPECT_GT((whole[1] - few[0].to(at::kFloat)).abs().min().item<double>(), 3e-3);
    EXPECT_GT(few[1].ne(few[0].to(dtype)).to(at::kFloat).mean().item<double>(), 0.9) << "most have moved";
  }
}

TEST(AdamW, WeightsOfFewBitsGoOnBitwiseFromTheirNamedState) {
  const auto begun = [] {
    torch::manual_seed(4);
    return std::pair{torch::randn({16, 8}).to(at::kBFloat16).requires_grad_(),
                     torch::randn({8}).to(at::kBFloat16).requires_grad_()};
  };
  const auto steps = [](AdamW& optimizer, std::int64_t from, std::int64_t to) {
    for (std::int64_t i = from; i < to; ++i) {
      for (const at::Tensor& p : optimizer.parameters()) {
        p.mutable_grad() = torch::full(p.sizes(), std::sin(static_cast<double>(i) + 1), at::kBFloat16);
      }
      optimizer.step(2e-5);
    }
  };
  const std::vector<std::string> names{"w", "b"};
  auto [weight, bias] = begun();
  AdamW whole({weight, bias}, {});
  steps(whole, 0, 10);
  std::vector<std::pair<std::string, at::Tensor>> saved;
  for (const auto& [name, tensor] : whole.named_state(names)) saved.emplace_back(name, tensor.clone());
  const at::Tensor saved_weight = weight.detach().clone(), saved_bias = bias.detach().clone();
  steps(whole, 10, 20);

  auto [weight_again, bias_again] = begun();
  AdamW resumed({weight_again, bias_again}, {});
  {
    const torch::NoGradGuard no_grad;
    weight_again.copy_(saved_weight);
    bias_again.copy_(saved_bias);
    const auto own = resumed.named_state(names);
    ASSERT_EQ(own.size(), 8U);
    for (std::size_t i = 0; i < own.size(); ++i) {
      EXPECT_EQ(own[i].first, saved[i].first);
      at::Tensor(own[i].second).copy_(saved[i].second);
    }
  }
  steps(resumed, 10, 20);
  EXPECT_TRUE(at::equal(weight, weight_again));
  EXPECT_TRUE(at::equal(bias, bias_again));
  const auto a = whole.state(), b = resumed.state();
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
}

TEST(ClipGradientNorm, IsTheNormInFp32OfGradientsOfSeveralTypes) {
  const at::Tensor p = torch::zeros({4096}).requires_grad_(), q = torch::zeros({3}).to(at::kBFloat16).requires_grad_();
  p.mutable_grad() = torch::full({4096}, 1.001F);
  q.mutable_grad() = torch::full({3}, 2.0).to(at::kBFloat16);
  const double expected = std::sqrt(4096 * 1.001 * 1.001 + 3 * 4);
  // The sums are in fp32; in bf16 the next numbers are 64 and 64.5.
  EXPECT_NEAR(gradient_norm({p, q}), expected, 1e-3);
  EXPECT_NEAR(clip_gradients({p, q}, ClipNorm{1.0}), expected, 1e-3);
  EXPECT_NEAR(gradient_norm({p, q}), 1.0, 1e-3);
}

TEST(ClipGradientNorm, ScalesToTheLimitAndNotBelow) {
  const at::Tensor p = torch::zeros({2}).requires_grad_();
  p.mutable_grad() = torch::tensor({3.0F, 4.0F});
  EXPECT_DOUBLE_EQ(clip_gradients({p}, ClipNorm{10.0}), 5.0);
  EXPECT_FLOAT_EQ(p.grad()[1].item<float>(), 4.0F);
  EXPECT_DOUBLE_EQ(clip_gradients({p}, ClipNorm{1.0}), 5.0);
  EXPECT_NEAR(p.grad().norm().item<double>(), 1.0, 1e-5);
  EXPECT_DOUBLE_EQ(clip_gradients({torch::zeros({2}).requires_grad_()}, ClipNorm{1.0}), 0.0);
}

/// Calls something behind every operator of this thread.
class EveryOperator {
 public:
  explicit EveryOperator(std::function<void()> call) {
    called = std::move(call);
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(nullptr, [](const at::RecordFunction&, at::ObserverContext*) { called(); }));
  }
  EveryOperator(const EveryOperator&) = delete;
  EveryOperator& operator=(const EveryOperator&) = delete;
  ~EveryOperator() { at::removeCallback(handle_); }

 private:
  static inline std::function<void()> called;
  at::CallbackHandle handle_;
};

/// Read without an operator.
std::vector<std::uint32_t> bits_of(const at::Tensor& fp32) {
  std::vector<std::uint32_t> bits(static_cast<std::size_t>(fp32.numel()));
  std::memcpy(bits.data(), fp32.const_data_ptr(), bits.size() * sizeof(bits[0]));
  return bits;
}

TEST(OptimizerKinds, MakeOnesWhoseRehearsalLeavesEverythingButTheGradients) {
  for (const OptimizerKind* kind : optimizer_kinds()) {
    EXPECT_EQ(&optimizer_kind(kind->name), kind);
    torch::manual_seed(5);
    // So large that one in 8 bits has codes, and with a negative zero.
    at::Tensor weight = torch::randn({64, 80}), few = torch::randn({8}).to(at::kHalf).requires_grad_();
    weight[3][4] = -0.0F;
    weight.requires_grad_();
    const auto optimizer = kind->make({weight, few}, own_defaults(optimizer_kinds()));
    const auto gradients = [&] {
      weight.mutable_grad() = torch::randn({64, 80});
      few.mutable_grad() = torch::randn({8}).to(at::kHalf);
    };
    const auto all = [&] {
      std::vector<at::Tensor> tensors = optimizer->state();
      tensors.insert(tensors.end(), {weight, few});
      for (at::Tensor& t : tensors) t = t.detach().clone().view(-1).view(at::kByte);  // signs of zeros, too
      return tensors;
    };
    const auto rehearses = [&] {
      gradients();
      const std::vector<at::Tensor> before = all();
      {
        const EveryOperator looks_at([&, bits = bits_of(weight)] { EXPECT_EQ(bits_of(weight), bits) << kind->name; });
        optimizer->rehearse();
      }
      const std::vector<at::Tensor> rehearsed = all();
      for (std::size_t i = 0; i < before.size(); ++i)
        EXPECT_TRUE(at::equal(before[i], rehearsed[i])) << kind->name << i;
      EXPECT_EQ(weight.grad().abs().sum().item<float>(), 0) << kind->name;
    };
    rehearses();
    const std::vector<at::Tensor> before = all();
    gradients();
    optimizer->step(1e-2);
    const std::vector<at::Tensor> after = all();
    for (std::size_t i = before.size() - 2; i < before.size(); ++i)
      EXPECT_FALSE(at::equal(before[i], after[i])) << kind->name;
    weight.detach()[5].fill_(-0.0F);  // with moments of either sign
    rehearses();                      // of one that has state
    const auto named = optimizer->named_state({"w", "f"});
    EXPECT_EQ(named.size(), optimizer->state().size());
    EXPECT_EQ(named.back().first, "master.f");
  }
  EXPECT_EQ(
      snug::testing::fault([] { (void)optimizer_kind("adam"); }),
      "optimizer: \"adam\" is not known; did you mean \"adamw\"? it must be one of adamw, adamw_8bit, adafactor, lion, "
      "muon, sgd");
}

TEST(Sgd, FollowsTheFormula) {
  const OptimizerKind& kind = optimizer_kind("sgd");
  for (const double momentum : {0.9, 0.0}) {
    torch::manual_seed(6);
    at::Tensor weight = torch::randn({5, 3}).requires_grad_(), bias = torch::randn({3}).requires_grad_();
    OwnValues values = own_defaults(optimizer_kinds());
    values.set("momentum", momentum);
    const auto optimizer = kind.make({weight, bias}, values);
    EXPECT_EQ(optimizer->state().size(), momentum > 0 ? 4U : 2U) << "with a count of steps each";
    const double rate = 1e-2, decay = values.number("weight_decay");
    at::Tensor p = weight.detach().to(at::kDouble), sum = at::zeros_like(p);
    at::Tensor plain = bias.detach().to(at::kDouble), plain_sum = at::zeros_like(plain);
    for (int t = 0; t < 4; ++t) {
      weight.mutable_grad() = torch::randn({5, 3});
      bias.mutable_grad() = torch::randn({3});
      sum = momentum * sum + weight.grad().to(at::kDouble);
      p = p * (1 - rate * decay) - rate * sum;
      plain_sum = momentum * plain_sum + bias.grad().to(at::kDouble);
      plain = plain - rate * plain_sum;  // not decayed
      optimizer->step(rate);
    }
    EXPECT_TRUE(at::allclose(weight.detach().to(at::kDouble), p, 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(bias.detach().to(at::kDouble), plain, 1e-5, 1e-6));
  }
}

TEST(Sgd, IsTheOneThatItsNameMakes) {
  const auto train = [](const auto& make) {
    torch::manual_seed(8);
    at::Tensor weight = torch::randn({5, 3}).requires_grad_();
    const std::unique_ptr<Optimizer> optimizer = make(weight);
    for (int t = 0; t < 3; ++t) {
      weight.mutable_grad() = torch::randn({5, 3});
      optimizer->step(1e-2);
    }
    return weight.detach();
  };
  const at::Tensor named = train([](const at::Tensor& weight) {
    OwnValues values = own_defaults(optimizer_kinds());
    values.set("momentum", 0.8);
    return optimizer_kind("sgd").make({weight}, values);
  });
  const auto direct = [](const SgdOptions& options) {
    return [options](const at::Tensor& weight) -> std::unique_ptr<Optimizer> {
      return std::make_unique<Sgd>(Parameters{weight}, options);
    };
  };
  EXPECT_TRUE(at::equal(train(direct({.momentum = 0.8})), named));
  EXPECT_FALSE(at::equal(train(direct({.momentum = 0.7})), named));
}

TEST(AdamW, KeepsWhatStatesOfBeforeHave) {
  const at::Tensor weight = torch::zeros({2, 2}).requires_grad_(),
                   few = torch::zeros({2}).to(at::kHalf).requires_grad_();
  const AdamW optimizer({weight, few}, {});
  std::vector<std::string> names;
  for (const auto& [name, tensor] : optimizer.named_state({"w", "f"})) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"exp_avg.w", "exp_avg_sq.w", "step.w", "exp_avg.f", "exp_avg_sq.f",
                                             "step.f", "master.f"}));
}

}  // namespace
}  // namespace snug::optim
