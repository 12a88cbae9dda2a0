// Reruns that save something else than the first run did.
#include <gtest/gtest.h>

#include "tests/device/test_device.h"
#include "tests/replay/rerun_cases.h"

namespace snug {
namespace {

using testing::kRerun;
using testing::rerun;

TEST(RerunCheckpoint, FewerSavedTensorsAreAnError) {
  auto calls = std::make_shared<int>(0);
  const at::Tensor x = torch::randn({4}, at::requires_grad());
  const auto less = [calls](const at::Tensor& t) { return ++*calls == 1 ? t.sin().sin().sin() : t.sin().sin(); };
  try {
    checkpoint(kRerun, less, x).sum().backward();
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("saved 3 tensors in forward and 2 when it ran again"), std::string::npos)
        << error.what();
  }
}

TEST(RerunCheckpoint, MoreSavedTensorsAreAnErrorUnlessItStopsBefore) {
  auto calls = std::make_shared<int>(0);
  const at::Tensor x = torch::randn({4}, at::requires_grad());
  const auto more = [calls](const at::Tensor& t) { return ++*calls == 1 ? t.sin().sin() : t.sin().sin().sin(); };
  try {
    checkpoint(rerun({.early_stop = false}), more, x).sum().backward();
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("is saving more than that"), std::string::npos) << error.what();
  }
  *calls = 0;
  EXPECT_NO_THROW(checkpoint(kRerun, more, x).sum().backward());
}

TEST(RerunCheckpoint, AnotherShapeIsAnErrorThatNamesBoth) {
  auto calls = std::make_shared<int>(0);
  const at::Tensor x = torch::randn({2}, at::requires_grad());
  const auto other = [calls](const at::Tensor& t) { return (++*calls == 1 ? t : t.narrow(0, 0, 1)).sin(); };
  try {
    checkpoint(kRerun, other, x).sum().backward();
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    const std::string device = testing::test_device().str();
    EXPECT_NE(text.find("Float [2] on " + device + " in forward and is Float [1] on " + device), std::string::npos)
        << text;
  }
}

TEST(RerunCheckpoint, DebugTellsWhereTheRunsPart) {
  auto calls = std::make_shared<int>(0);
  const at::Tensor x = torch::randn({2}, at::requires_grad());
  const auto other = [calls](const at::Tensor& t) { return ++*calls == 1 ? t.exp().sin().tanh() : t.exp().cos(); };
  try {
    checkpoint(rerun({.debug = true, .early_stop = false}), other, x).sum().backward();
    FAIL();
  } catch (const Error& error) {
    // Of some devices factories are operators that are seen, too.
    EXPECT_NE(std::string(error.what()).find("aten::sin in forward, aten::cos when it ran"), std::string::npos)
        << error.what();
  }
}

TEST(RerunCheckpoint, OtherValuesAreFoundWhenAskedFor) {
  auto calls = std::make_shared<int>(0);
  const at::Tensor x = torch::randn({8}, at::requires_grad());
  const auto other = [calls](const at::Tensor& t) { return (t * static_cast<double>(++*calls)).sin(); };
  EXPECT_NO_THROW(checkpoint(kRerun, other, x).sum().backward());
  *calls = 0;
  EXPECT_THROW(checkpoint(rerun({.determinism_check = DeterminismCheck::Values}), other, x).sum().backward(), Error);
  EXPECT_NO_THROW(checkpoint(
                      rerun({.determinism_check = DeterminismCheck::Values}),
                      [](const at::Tensor& t) { return torch::dropout(t, 0.5, true).sin(); }, x)
                      .sum()
                      .backward());
}

TEST(RerunCheckpoint, AWeightChangedSinceIsAnError) {
  const at::Tensor w = torch::randn({4}, at::requires_grad()), x = torch::randn({4}, at::requires_grad());
  const at::Tensor y = checkpoint(
      kRerun, [&](const at::Tensor& t) { return t * w; }, x);
  {
    const torch::NoGradGuard no_grad;
    w.mul_(2);
  }
  EXPECT_THROW(y.sum().backward(), Error);
}

TEST(RerunCheckpoint, AWriteToWhatWasSavedIsAnErrorAsInPlainAutograd) {
  const at::Tensor x = torch::rand({5}, at::requires_grad());
  const auto call = [](const at::Tensor& t) {
    at::Tensor u = t * 2;
    const at::Tensor y = u.sin();
    u.add_(1);
    return y.exp() + u;
  };
  EXPECT_THROW(torch::autograd::grad({call(x).sum()}, {x}), c10::Error);
  EXPECT_THROW(torch::autograd::grad({checkpoint(kRerun, call, x).sum()}, {x}), Error);
}

TEST(RerunCheckpoint, TheValuesOfRunningStatisticsAreNotHeldAgainstIt) {
  torch::nn::BatchNorm1d norm(4);
  const at::Tensor x = torch::randn({8, 4}, at::requires_grad());
  const at::Tensor y = checkpoint(
      rerun({.determinism_check = DeterminismCheck::Values}), [&](const at::Tensor& t) { return norm(t).sin(); }, x);
  EXPECT_NO_THROW(y.sum().backward());
}

}  // namespace
}  // namespace snug
