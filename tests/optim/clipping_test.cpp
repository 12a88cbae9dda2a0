// Clipping against torch.nn.utils: see make_references.py.
#include "snug/optim/clipping.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "snug/base/errors.h"
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

TEST(JointNorm, HasTheSameBitsInAnyPartsOfWholeBlocks) {
  torch::manual_seed(5);
  const double largest = std::numeric_limits<double>::infinity();
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    const at::Tensor all = (torch::randn({100'003}) * 1e-3).to(type);
    for (const double order : {1.0, 2.0, largest}) {
      const double norm = joint_norm({all}, order);
      const double exact = all.to(at::kDouble).norm(order).item<double>();
      EXPECT_NEAR(norm, exact, 1e-12 * exact) << type << " of order " << order;
      for (const std::int64_t cut : {std::int64_t{256}, std::int64_t{256 * 77}, std::int64_t{256 * 390}}) {
        const at::Tensor first = all.slice(0, 0, cut), rest = all.slice(0, cut);
        EXPECT_EQ(joint_norm({rest, first}, order), norm);
        // And as two processes do.
        std::vector<std::int64_t> told;
        const OtherParts tells{.add_up = [&](auto numbers) { told.assign(numbers.begin(), numbers.end()); },
                               .largest = [&](auto numbers) { told.assign(numbers.begin(), numbers.end()); }};
        (void)joint_norm({first}, order, tells);
        const OtherParts adds{.add_up =
                                  [&](auto numbers) {
                                    for (std::size_t i = 0; i < told.size(); ++i) numbers[i] += told[i];
                                  },
                              .largest = [&](auto numbers) { numbers[0] = std::max(numbers[0], told[0]); }};
        EXPECT_EQ(joint_norm({rest}, order, adds), norm);
      }
    }
  }
  const at::Tensor one = torch::randn({300'000});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const double alone = joint_norm({one}, 2);
  at::set_num_threads(threads);
  EXPECT_EQ(joint_norm({one}, 2), alone);
}

TEST(JointNorm, IsOfWhatTheElementsAreAndNotOfHowTheyLie) {
  const at::Tensor matrix = torch::randn({70, 90});
  EXPECT_EQ(joint_norm({matrix.slice(1, 0, 33)}, 2), joint_norm({matrix.slice(1, 0, 33).contiguous()}, 2));
  EXPECT_EQ(joint_norm({torch::full({4}, 1e30F)}, 2), 2 * static_cast<double>(1e30F)) << "whose squares no fp32 has";
  EXPECT_EQ(joint_norm({torch::full({3}, -2.0F), torch::tensor({7.0F})}, std::numeric_limits<double>::infinity()), 7);
  EXPECT_TRUE(std::isnan(joint_norm({torch::tensor({1.0F, std::nanf("")})}, 2)));
  EXPECT_TRUE(std::isnan(joint_norm({torch::tensor({std::nanf(""), 1.0F})}, std::numeric_limits<double>::infinity())));
  EXPECT_THROW((void)joint_norm({matrix}, 3), UsageError);
}

}  // namespace
}  // namespace snug::optim
