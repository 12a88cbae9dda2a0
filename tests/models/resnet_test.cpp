// Residual networks against those of resnet_reference.py, on weights and results that it wrote.
#include "snug/models/resnet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "reference.h"
#include "snug/base/errors.h"
#include "snug/state/load_weights.h"

namespace snug::models {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// The depth of ResNet-50.
const ResnetOptions kBottleneck{.blocks = Bottlenecks{}, .depths = {3, 4, 6, 3}, .width = 2, .classes = 5};
const ResnetOptions kBasic{.stem = SmallImageStem{}, .width = 3, .channels = 1, .classes = 5};

constexpr double kStoredRounding = 2e-5;  // what the reference computed in fp64 is stored in fp32, up to 70

void expect_resnet_as_the_reference(const ResnetOptions& options, const std::string& name) {
  const state::StoredTensors expected = stored(name + "_expected");
  Resnet model(options);
  state::load_weights(*model, stored(name), name);
  // Batch norm over few values multiplies what is rounded, so in fp64.
  model->to(at::kDouble);
  const at::Tensor images = expected.at("images").read().to(at::kDouble), labels = expected.at("targets").read();
  model->eval();
  EXPECT_LT(difference(model->forward(images), expected.at("logits").read()), kStoredRounding);
  model->train();
  const at::Tensor logits = model->forward(images);
  EXPECT_LT(difference(logits, expected.at("logits.training").read()), kStoredRounding);
  std::size_t buffers = 0;
  for (const auto& b : model->named_buffers()) {
    if (b.key().ends_with("num_batches_tracked")) {
      EXPECT_EQ(b.value().item<std::int64_t>(), 1) << b.key();
    } else {
      EXPECT_LT(difference(b.value(), expected.at("after." + b.key()).read()), kStoredRounding) << b.key();
      ++buffers;
    }
  }
  EXPECT_EQ(buffers, 2 * static_cast<std::size_t>(std::ranges::count_if(
                             stored(name), [](const auto& e) { return e.first.ends_with("running_var"); })));
  at::cross_entropy_loss(logits, labels).backward();
  expect_gradients(*model, expected, kStoredRounding);
}

TEST(Resnet, OfBottlenecksGivesTheReferencesResults) {
  expect_resnet_as_the_reference(kBottleneck, "resnet_bottleneck");
}

TEST(Resnet, OfBasicBlocksForSmallImagesGivesTheReferencesResults) {
  expect_resnet_as_the_reference(kBasic, "resnet_basic");
}

TEST(Resnet, LossIsThatOfItsLogits) {
  const state::StoredTensors expected = stored("resnet_basic_expected");
  Resnet model(kBasic);
  state::load_weights(*model, stored("resnet_basic"), "resnet_basic");
  const at::Tensor loss = model->loss(expected.at("images").read(), expected.at("targets").read());
  // In fp32 behind batch norm: see above.
  EXPECT_LT(difference(loss, expected.at("loss").read()), 1e-4);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
}

TEST(Resnet, BeginsAsTheReferenceDoes) {
  torch::manual_seed(1);
  Resnet model(resnet_options("ResNet-18"));
  const auto all = model->named_parameters();
  const auto deviation = [&](const char* name) { return all[name].std().item<double>(); };
  // Tens of thousands of draws: their deviation is within a hundredth of that of the distribution.
  EXPECT_NEAR(deviation("layer2.0.conv1.weight"), std::sqrt(2.0 / (128 * 9)), 0.0005) << "by the fan out";
  EXPECT_NEAR(deviation("layer2.0.downsample.0.weight"), std::sqrt(2.0 / 128), 0.003);
  EXPECT_EQ(all["layer2.0.bn2.weight"].mean().item<double>(), 1);
}

TEST(Resnet, ModelsOfThePaperHaveTheirSizes) {
  const auto parameters = [](const char* name) { return parameter_count(*Resnet(resnet_options(name))); };
  EXPECT_EQ(parameters("ResNet-18"), 11'689'512);
  EXPECT_EQ(parameters("ResNet-34"), 21'797'672);
  EXPECT_EQ(parameters("ResNet-50"), 25'557'032);
  EXPECT_EQ(parameters("ResNet-101"), 44'549'160);
  EXPECT_EQ(parameters("ResNet-152"), 60'192'808);
  EXPECT_EQ(resnet_names().size(), 5U);
  EXPECT_THAT([] { resnet_options("resnet50"); }, ThrowsMessage<UsageError>(HasSubstr("ResNet-50")));
}

TEST(Resnet, RefusesShapesThatCannotBe) {
  ResnetOptions options = kBasic;
  options.depths = {2, 0, 2, 2};
  EXPECT_THAT([&] { Resnet{options}; }, ThrowsMessage<UsageError>(HasSubstr("2, 0, 2, 2")));
  options = kBasic;
  options.width = 0;
  EXPECT_THAT([&] { Resnet{options}; }, ThrowsMessage<UsageError>(HasSubstr("width of 0")));
  Resnet model(kBasic);
  EXPECT_THAT(
      [&] {
        model->forward(torch::zeros({2, 3, 16, 16}));
      },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("2x3x16x16"), HasSubstr("model of 1 channels"))));
  EXPECT_THROW(model->forward(torch::zeros({1, 16, 16})), UsageError);
}

}  // namespace
}  // namespace snug::models
