#include "snug/state/load_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "snug/base/errors.h"
#include "tests/base/fault.h"

namespace snug::state {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StoredTensor stored(const at::Tensor& tensor) {
  return {tensor.scalar_type(), tensor.sizes().vec(), [tensor] { return tensor; }};
}

torch::nn::Sequential net() { return torch::nn::Sequential(torch::nn::Linear(3, 2), torch::nn::BatchNorm1d(2)); }

StoredTensors all_of(torch::nn::Sequential& net) {
  StoredTensors all;
  for (const auto& p : net->named_parameters()) all.emplace(p.key(), stored(torch::randn_like(p.value())));
  for (const auto& b : net->named_buffers()) all.emplace(b.key(), stored(torch::ones_like(b.value())));
  return all;
}

std::string load_fault(torch::nn::Sequential& net, const StoredTensors& tensors, const LoadOptions& options = {}) {
  return snug::testing::fault([&] { load_weights(*net, tensors, "the file", options); });
}

TEST(LoadWeights, CopiesParametersAndBuffersInTheModelsTypes) {
  auto model = net();
  StoredTensors all = all_of(model);
  const at::Tensor half = torch::randn({2, 3}).to(at::kBFloat16);
  all.at("0.weight") = stored(half);
  load_weights(*model, all, "the file");
  const auto parameters = model->named_parameters();
  EXPECT_TRUE(at::equal(parameters["0.weight"], half.to(at::kFloat)));
  EXPECT_TRUE(parameters["0.weight"].requires_grad() && parameters["0.weight"].is_leaf());
  EXPECT_TRUE(at::equal(parameters["0.bias"], all.at("0.bias").read()));
  EXPECT_EQ(model->named_buffers()["1.running_mean"].sum().item<float>(), 2);
}

TEST(LoadWeights, ListsAllThatIsWrongAtOnceAndWritesNothing) {
  auto model = net();
  StoredTensors all = all_of(model);
  const at::Tensor before = model->named_parameters()["1.weight"].clone();
  all.erase("0.bias");
  all.erase("1.running_var");
  all.emplace("head.weight", stored(torch::ones({1})));
  all.at("0.weight") = stored(torch::ones({3, 2}));
  const std::string text = load_fault(model, all);
  EXPECT_THAT(text, HasSubstr("from the file"));
  EXPECT_THAT(text, HasSubstr("2 missing: 0.bias, 1.running_var"));
  EXPECT_THAT(text, HasSubstr("1 left over: head.weight"));
  EXPECT_THAT(text, HasSubstr("1 of another shape: 0.weight (3x2 in the file, 2x3 in the model)"));
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  EXPECT_TRUE(at::equal(before, model->named_parameters()["1.weight"]));
}

TEST(LoadWeights, RenamesAndLeavesOut) {
  auto model = net();
  StoredTensors all;
  for (auto& [name, tensor] : all_of(model)) all.emplace("model." + name, tensor);
  all.emplace("model.rotary.inv_freq", stored(torch::ones({1})));
  const LoadOptions options{.rename = [](std::string_view name) -> std::optional<std::string> {
    if (name.ends_with("inv_freq")) return std::nullopt;
    return std::string(name.substr(6));
  }};
  EXPECT_EQ(load_fault(model, all, options), "none");
  const LoadOptions to_one{.rename = [](std::string_view) { return std::optional<std::string>("0.bias"); }};
  EXPECT_THAT(load_fault(model, all, to_one), HasSubstr("(a second 0.bias)"));
}

TEST(LoadWeights, ATensorWithTwoNamesNeedBeThereUnderOne) {
  struct Tied : torch::nn::Module {
    Tied() {
      const at::Tensor shared = register_parameter("embedding", torch::zeros({2}));
      register_parameter("head", shared);
    }
  } module;
  load_weights(module, {{"embedding", stored(torch::ones({2}))}}, "f");
  EXPECT_EQ(module.named_parameters()["head"].sum().item<float>(), 2);
  EXPECT_THROW(load_weights(module, {}, "f"), UsageError);
}

TEST(LoadWeights, ALongListIsCutShort) {
  auto model = net();
  StoredTensors all = all_of(model);
  for (int i = 0; i < 20; ++i) all.emplace("extra." + std::to_string(i), stored(torch::ones({1})));
  EXPECT_THAT(load_fault(model, all), HasSubstr("20 left over: extra.0, extra.1, extra.10"));
  EXPECT_THAT(load_fault(model, all), HasSubstr("and 12 more"));
}

}  // namespace
}  // namespace snug::state
