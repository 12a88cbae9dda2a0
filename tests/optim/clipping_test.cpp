// Clipping against torch.nn.utils: see make_references.py.
#include "snug/optim/clipping.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/optim/references.h"

namespace snug::optim {
namespace {

const std::vector<std::string> kNames{"matrix", "tall", "large", "vector"};

TEST(ClipGradients, ByEachNormAsTorchDoes) {
  const std::vector<std::pair<double, std::string>> orders{
      {1, "1.0"}, {2, "2.0"}, {std::numeric_limits<double>::infinity(), "inf"}};
  for (const auto& [order, name] : orders) {
    std::vector<at::Tensor> parameters = reference_parameters(kNames);
    give_reference_gradients(parameters, kNames, 3);
    const auto norm = reference("clip." + name + ".norm").item<float>();
    EXPECT_FLOAT_EQ(static_cast<float>(gradient_norm(parameters, order)), norm);
    EXPECT_FLOAT_EQ(static_cast<float>(clip_gradients(parameters, ClipNorm{2.5, order})), norm);
    EXPECT_TRUE(at::allclose(parameters.front().grad(), reference("clip." + name + ".first"), 1e-6)) << order;
    EXPECT_NEAR(gradient_norm(parameters, order), 2.5, 1e-4);
  }
}

TEST(ClipGradients, ByValueAsTorchDoes) {
  std::vector<at::Tensor> parameters = reference_parameters({"vector"});
  give_reference_gradients(parameters, {"vector"}, 3);
  const double before = gradient_norm(parameters);
  EXPECT_EQ(clip_gradients(parameters, ClipValue{5}), before);
  EXPECT_TRUE(at::equal(parameters.front().grad(), reference("clip.value.vector")));
}

TEST(ClipGradients, LeavesThemWhereNothingIsAskedOrTheNormIsNotFinite) {
  std::vector<at::Tensor> parameters = reference_parameters({"vector"});
  give_reference_gradients(parameters, {"vector"}, 3);
  EXPECT_GT(clip_gradients(parameters, NoClipping{}), 10);
  EXPECT_TRUE(at::equal(parameters.front().grad(), reference("gradient.3.vector")));
  parameters.front().mutable_grad()[0] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(clip_gradients(parameters, ClipNorm{1}), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(at::equal(parameters.front().grad().slice(0, 1), reference("gradient.3.vector").slice(0, 1)));
}

}  // namespace
}  // namespace snug::optim
