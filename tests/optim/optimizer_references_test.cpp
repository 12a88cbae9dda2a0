// Optimizers against torch.optim and bitsandbytes: see make_references.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "snug/base/own_key.h"
#include "snug/optim/adafactor.h"
#include "snug/optim/adamw.h"
#include "snug/optim/adamw_8bit.h"
#include "snug/optim/blockwise_code.h"
#include "snug/optim/lion.h"
#include "snug/optim/muon.h"
#include "snug/optim/sgd.h"
#include "tests/base/fault.h"
#include "tests/optim/references.h"

namespace snug::optim {
namespace {

struct Distance {
  double largest = 0, mean = 0;  // the largest mean of a parameter
};

/// From what a reference reaches, in units of a learning rate.
Distance distance(const std::string& kind, const std::vector<std::string>& names,
                  const std::function<std::unique_ptr<Optimizer>(const Parameters&)>& make) {
  std::vector<at::Tensor> parameters = reference_parameters(names);
  const std::unique_ptr<Optimizer> optimizer = make(parameters);
  for (int step = 0; step < kReferenceSteps; ++step) {
    give_reference_gradients(parameters, names, step);
    optimizer->step(kReferenceRate);
  }
  Distance found;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const at::Tensor apart = (parameters[i].detach() - reference(kind + "." + names[i])).abs();
    found.largest = std::max(found.largest, apart.max().item<double>() / kReferenceRate);
    found.mean = std::max(found.mean, apart.mean().item<double>() / kReferenceRate);
    EXPECT_FALSE(at::equal(parameters[i].detach(), reference(names[i]))) << "it has moved";
  }
  return found;
}

constexpr GroupRule decayed() { return {"*", 0.1, std::nullopt}; }

/// torch.optim decays vectors too.
Parameters all_decayed(const Parameters& parameters) {
  Parameters all = parameters;
  all.names.resize(all.tensors.size(), "p");
  all.rules = {decayed()};
  return all;
}

TEST(OptimizerReferences, AdamWIsTorchs) {
  EXPECT_LT(distance("adamw", {"matrix", "vector"},
                     [](const Parameters& p) { return std::make_unique<AdamW>(all_decayed(p), AdamWOptions{}); })
                .largest,
            1e-4);
}

TEST(OptimizerReferences, AdafactorIsTorchsBitForBit) {
  EXPECT_EQ(
      distance("adafactor", {"matrix", "tall", "vector"},
               [](const Parameters& p) { return std::make_unique<Adafactor>(all_decayed(p), AdafactorOptions{}); })
          .largest,
      0);
}

TEST(OptimizerReferences, MuonIsTorchsBitForBit) {
  EXPECT_EQ(
      distance("muon", {"matrix", "tall"}, [](const Parameters& p) { return std::make_unique<Muon>(p, MuonOptions{}); })
          .largest,
      0);
}

TEST(OptimizerReferences, SgdIsTorchs) {
  EXPECT_LT(distance("sgd", {"matrix", "vector"},
                     [](const Parameters& p) {
                       return std::make_unique<Sgd>(p, SgdOptions{.momentum = 0.9, .weight_decay = 0});
                     })
                .largest,
            1e-3);
}

TEST(OptimizerReferences, AdamWInEightBitsIsThatOfBitsandbytes) {
  const Distance found = distance("adamw_8bit", {"large", "vector"}, [](const Parameters& p) {
    return std::make_unique<AdamW8bit>(all_decayed(p), AdamWOptions{});
  });
  // It divides where this multiplies by the inverse: a number between two codes may get the other.
  EXPECT_LT(found.mean, 1e-3);
  EXPECT_LT(found.largest, 0.05);
}

TEST(BlockwiseCode, IsTheMapOfBitsandbytes) {
  const at::Tensor with_sign = reference("adamw_8bit.large.qmap1"), without = reference("adamw_8bit.large.qmap2");
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    EXPECT_FLOAT_EQ(BlockwiseCode::with_sign().value(byte), with_sign[code].item<float>()) << code;
    EXPECT_FLOAT_EQ(BlockwiseCode::without_sign().value(byte), without[code].item<float>()) << code;
  }
}

TEST(BlockwiseCode, FindsTheNearest) {
  torch::manual_seed(1);
  for (const BlockwiseCode* code : {&BlockwiseCode::with_sign(), &BlockwiseCode::without_sign()}) {
    const double lowest = code->value(0);
    const at::Tensor numbers =
        at::cat({torch::rand({4000}), torch::rand({4000}).pow(12), at::tensor({0.0F, 1.0F, 1e-7F, 1e-30F})});
    for (float number : {1.0F, -1.0F}) {
      if (number < lowest) continue;
      for (int i = 0; i < numbers.numel(); ++i) {
        const float x = number * numbers[i].item<float>();
        float best = 2;
        for (int c = 0; c < 256; ++c) best = std::min(best, std::abs(code->value(static_cast<std::uint8_t>(c)) - x));
        ASSERT_EQ(std::abs(code->value(code->nearest(x)) - x), best) << x;
      }
    }
    EXPECT_EQ(code->nearest(2.0F), 255);
    EXPECT_EQ(code->value(code->nearest(0.0F)), 0.0F);
  }
}

TEST(AdamW8bit, KeepsCodesOfLargeParametersThatAreThoseOfBitsandbytes) {
  std::vector<at::Tensor> parameters = reference_parameters({"large", "vector"});
  AdamW8bit optimizer(parameters, {});
  for (int step = 0; step < kReferenceSteps; ++step) {
    give_reference_gradients(parameters, {"large", "vector"}, step);
    optimizer.step(kReferenceRate);
  }
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, tensor] : optimizer.named_state({"large", "vector"})) state.emplace(name, tensor);
  EXPECT_TRUE(at::allclose(state.at("exp_avg_absmax.large"), reference("adamw_8bit.large.absmax1"), 1e-2));
  EXPECT_TRUE(at::allclose(state.at("exp_avg_sq_absmax.large"), reference("adamw_8bit.large.absmax2"), 1e-2));
  const auto same = [&](const char* ours, const char* theirs) {
    const at::Tensor apart = state.at(ours).to(at::kInt).view(-1) - reference(theirs).to(at::kInt).view(-1);
    return apart.abs().le(1).to(at::kFloat).mean().item<float>();
  };
  EXPECT_GT(same("exp_avg.large", "adamw_8bit.large.state1"), 0.995);
  EXPECT_GT(same("exp_avg_sq.large", "adamw_8bit.large.state2"), 0.995);
  EXPECT_EQ(state.at("exp_avg.large").scalar_type(), at::kByte);
  EXPECT_EQ(state.at("exp_avg.vector").scalar_type(), at::kFloat) << "small ones are not coded";
  EXPECT_EQ(state.count("exp_avg_absmax.vector"), 0U);
}

TEST(AdamW8bit, DoesNotDependOnTheNumberOfThreads) {
  const auto trained = [](int threads) {
    at::set_num_threads(threads);
    std::vector<at::Tensor> parameters = reference_parameters({"large"});
    AdamW8bit optimizer(parameters, {});
    for (int step = 0; step < kReferenceSteps; ++step) {
      give_reference_gradients(parameters, {"large"}, step);
      optimizer.step(kReferenceRate);
    }
    return parameters.front().detach();
  };
  const at::Tensor one = trained(1);
  EXPECT_TRUE(at::equal(one, trained(2)));
}

TEST(Lion, FollowsTheFormula) {
  std::vector<at::Tensor> parameters = reference_parameters({"matrix"});
  Lion optimizer(parameters, {.beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1});
  at::Tensor p = reference("matrix").to(at::kDouble), m = at::zeros_like(p);
  for (int step = 0; step < kReferenceSteps; ++step) {
    give_reference_gradients(parameters, {"matrix"}, step);
    const at::Tensor g = parameters.front().grad().to(at::kDouble);
    p = p * (1 - kReferenceRate * 0.1) - kReferenceRate * (0.9 * m + 0.1 * g).sign();
    m = 0.99 * m + 0.01 * g;
    optimizer.step(kReferenceRate);
  }
  EXPECT_TRUE(at::allclose(parameters.front().detach().to(at::kDouble), p, 1e-5, 1e-6));
}

TEST(Muon, LeavesToAdamWWhatIsNoMatrixOrIsExcepted) {
  Parameters parameters = reference_parameters({"matrix", "tall", "vector"});
  parameters.names = {"blocks.0.up.weight", "lm_head.weight", "norm.weight"};
  const Muon optimizer(parameters, {.others = {}, .not_matrices = {"*head*"}});
  std::vector<std::string> kept;
  for (const auto& [name, tensor] : optimizer.named_state({"up", "head", "norm"})) kept.push_back(name);
  EXPECT_EQ(kept, (std::vector<std::string>{"momentum_buffer.up", "step.up", "exp_avg.head", "exp_avg_sq.head",
                                            "step.head", "exp_avg.norm", "exp_avg_sq.norm", "step.norm"}));
}

TEST(Muon, PatternsOfExceptionsHaveToNameSomething) {
  const at::Tensor weight = torch::randn({4, 4}).requires_grad_();
  EXPECT_THROW(Muon({weight}, {.others = {}, .not_matrices = {"*head*"}}), std::logic_error);
  const OptimizerKind& kind = optimizer_kind("muon");
  OwnValues values = own_defaults(optimizer_kinds());
  Parameters parameters{weight};
  parameters.names = {"lm_head.weight"};
  EXPECT_EQ(kind.make(parameters, values)->named_state({"w"}).front().first, "exp_avg.w") << "by default";
  values.set("muon_except", std::string("*lm_haed*"));
  EXPECT_THAT(snug::testing::fault([&] { (void)kind.make(parameters, values); }),
              ::testing::StartsWith("optimizer.muon_except: no parameter that trains has a name of the pattern"));
}

}  // namespace
}  // namespace snug::optim
