// Optimizer steps are rehearsed where a step is recorded: what they take, and the state that they make.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "snug/snug.h"
#include "tests/device/test_device.h"
#include "tests/replay/layers_net.h"

namespace snug {
namespace {

using testing::Net;
using testing::test_memory;

TEST(Rehearsal, CountsAnOptimizerStepThatIsRehearsed) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  constexpr Bytes kWorkspace = 256_MiB;
  int rehearsed = 0;
  const auto update = [&] {
    for (const at::Tensor& g : net.gradients()) EXPECT_TRUE(g.defined());
    const at::Tensor workspace = at::empty({kWorkspace}, at::kByte);
    ++rehearsed;
  };
  const Bytes before = test_memory().stats().allocated;
  {
    const Session session = fit(net, x, {.budget = before + kWorkspace + 64_MiB, .update = update});
    EXPECT_GT(rehearsed, 0);
    EXPECT_EQ(session.graph().update_bytes, test_memory().rounded(kWorkspace));
    EXPECT_GT(session.graph().update_seconds, 0);
    // It comes when the gradients are there.
    EXPECT_GT(session.plan().unplanned_peak, before + kWorkspace + 2_MiB);
  }
  EXPECT_EQ(test_memory().stats().allocated, before);
  // Forward and backward alone would fit.
  EXPECT_NO_THROW(fit(net, x, {.budget = before + kWorkspace / 2}));
  EXPECT_THROW(fit(net, x, {.budget = before + kWorkspace / 2, .update = update}), DoesNotFit);
}

TEST(Rehearsal, CountsStateOfParametersThatOtherStepsHaveGradientsFor) {
  torch::nn::Linear always(512, 512), sometimes(512, 512);
  const at::Tensor x = torch::randn({64, 512});
  const auto step = [&](const at::Tensor& batch) { return always(batch).square().mean(); };
  const auto parameters = [](const std::vector<torch::nn::Linear>& layers) {
    std::vector<at::Tensor> all;
    for (const auto& layer : layers) {
      for (const at::Tensor& p : layer->parameters()) all.push_back(p);
    }
    return all;
  };
  const at::Tensor before = sometimes->weight.detach().clone();
  const auto peak_with = [&](const std::vector<torch::nn::Linear>& layers) {
    torch::optim::AdamW optimizer(parameters(layers));
    const Session session = fit(step, x, {.budget = 1_GiB, .optimizer = optimizer});
    EXPECT_TRUE(optimizer.state().empty());
    return session.plan().unplanned_peak;
  };
  Bytes moments = 0;
  for (const at::Tensor& p : sometimes->parameters())
    moments += 2 * test_memory().rounded(static_cast<Bytes>(p.nbytes()));
  EXPECT_EQ(peak_with({always, sometimes}) - peak_with({always}), moments);
  EXPECT_FALSE(sometimes->weight.grad().defined());
  EXPECT_TRUE(at::equal(sometimes->weight, before)) << "though a step of AdamW decays it";
  sometimes->weight.set_requires_grad(false);
  EXPECT_LT(peak_with({always, sometimes}) - peak_with({always}), moments) << "nothing will come of it";
}

TEST(Rehearsal, RefusesTheOptimizerOfAnotherModel) {
  Net net, other;
  torch::optim::SGD optimizer(other.layers->parameters(), 0.1);
  try {
    (void)fit(net, torch::randn({64, 256}), {.budget = 1_GiB, .optimizer = optimizer});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("has gradients for none of the optimizer's"));
  }
  optimizer.add_param_group(net.layers->parameters());
  EXPECT_NO_THROW((void)fit(net, torch::randn({64, 256}), {.budget = 1_GiB, .optimizer = optimizer}));
}

TEST(Rehearsal, TakesTheOptimizerOfMasterCopies) {
  const at::Tensor weight = torch::randn({256, 256}).to(at::kBFloat16).requires_grad_();
  torch::optim::AdamW optimizer({weight.detach().to(at::kFloat).requires_grad_()});
  const auto step = [&](const at::Tensor& x) { return x.matmul(weight).square().mean(); };
  const at::Tensor x = torch::randn({64, 256}).to(at::kBFloat16);
  const auto peak = [&](const FitOptions& options) { return fit(step, x, options).plan().unplanned_peak; };
  EXPECT_GE(peak({.budget = 1_GiB, .optimizer = optimizer}), peak({.budget = 1_GiB}) + 2 * 256 * 256 * 4)
      << "its moments, though their gradients are made by the update";
}

}  // namespace
}  // namespace snug
