// The Vision Transformer against Hugging Face's, on weights and results that make_references.py wrote.
#include "snug/models/vit.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "reference.h"
#include "snug/base/errors.h"
#include "snug/models/parameter.h"
#include "snug/state/load_weights.h"

namespace snug::models {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const VitOptions kSmallVit{
    .layers = 3, .width = 24, .inner_width = 40, .heads = 3, .image = 8, .patch = 2, .channels = 1, .classes = 5};

Vit loaded_vit(const VitOptions& options = kSmallVit) {
  Vit model(options);
  state::load_weights(*model, stored("vit"), "vit.safetensors");
  return model;
}

TEST(Vit, GivesTheReferencesLogitsAndGradients) {
  const state::StoredTensors expected = stored("vit_expected");
  const at::Tensor images = expected.at("images").read();
  Vit model = loaded_vit();
  EXPECT_LT(difference(model->forward(images), expected.at("logits").read()), kRounding);
  const at::Tensor loss = model->loss(images, expected.at("targets").read());
  EXPECT_LT(difference(loss, expected.at("loss").read()), kRounding);
  loss.backward();
  expect_gradients(*model, expected, kRounding);
}

TEST(Vit, DropsOutWhereItIsTold) {
  const at::NoGradGuard no_grad;
  const at::Tensor images = stored("vit_expected").at("images").read();
  for (double VitOptions::*const rate : {&VitOptions::dropout, &VitOptions::attention_dropout}) {
    VitOptions options = kSmallVit;
    options.*rate = 0.5;
    Vit model = loaded_vit(options);
    expect_dropout(*model, [&] { return model->forward(images); });
  }
}

TEST(Vit, ModelsOfThePaperHaveTheirSizes) {
  const ShapesOnlyScope shapes_only(at::kFloat);
  const auto parameters = [](const char* name) { return parameter_count(*Vit(vit_options(name))); };
  EXPECT_EQ(parameters("ViT-B/16"), 86'567'656);
  EXPECT_EQ(parameters("ViT-B/32"), 88'224'232);
  EXPECT_EQ(parameters("ViT-L/16"), 304'326'632);
  EXPECT_EQ(parameters("ViT-L/32"), 306'535'400);
  EXPECT_EQ(parameters("ViT-H/14"), 632'045'800);
  EXPECT_EQ(vit_names().size(), 5U);
  EXPECT_THAT([] { vit_options("ViT-G/14"); }, ThrowsMessage<UsageError>(HasSubstr("ViT-H/14")));
}

TEST(Vit, RefusesShapesThatCannotBe) {
  VitOptions options = kSmallVit;
  options.image = 9;
  EXPECT_THAT([&] { Vit{options}; }, ThrowsMessage<UsageError>(AllOf(HasSubstr("9x9"), HasSubstr("2x2"))));
  options = kSmallVit;
  options.heads = 7;
  EXPECT_THAT([&] { Vit{options}; }, ThrowsMessage<UsageError>(AllOf(HasSubstr("24"), HasSubstr("7 heads"))));
  Vit model(kSmallVit);
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{4, 3, 8, 8}, {4, 1, 8, 10}, {4, 1, 16, 16}, {1, 8, 8}}) {
    EXPECT_THAT(
        [&] { model->forward(torch::zeros(shape)); },
        ThrowsMessage<UsageError>(AllOf(HasSubstr(fmt::format("{}", fmt::join(shape, "x"))), HasSubstr("Nx1x8x8"))));
  }
}

}  // namespace
}  // namespace snug::models
