#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "snug/models/autocast.h"
#include "snug/models/gpt.h"

// Models of the shapes that planners have to deal with, small enough for tests: a chain of equal blocks, one whose
// pieces differ in size and write in place, and one with skip connections from end to end.
namespace snug::testing {

namespace nn = torch::nn;

/// Two convolutions with BatchNorm and an in-place ReLU, and a shortcut around them (He et al. 2016).
struct ResidualBlockImpl : nn::Module {
  ResidualBlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride) {
    first = register_module("first", nn::Conv2d(nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false)));
    first_norm = register_module("first_norm", nn::BatchNorm2d(out));
    second = register_module("second", nn::Conv2d(nn::Conv2dOptions(out, out, 3).padding(1).bias(false)));
    second_norm = register_module("second_norm", nn::BatchNorm2d(out));
    if (in != out || stride != 1) {
      shortcut = register_module("shortcut", nn::Conv2d(nn::Conv2dOptions(in, out, 1).stride(stride).bias(false)));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = first_norm(first(x)).relu_();
    y = second_norm(second(y));
    y += shortcut ? shortcut(x) : x;
    return torch::relu_(y);
  }
  nn::Conv2d first{nullptr}, second{nullptr}, shortcut{nullptr};
  nn::BatchNorm2d first_norm{nullptr}, second_norm{nullptr};
};
TORCH_MODULE(ResidualBlock);

/// A small ResNet: images (batch, 3, side, side) -> the mean cross-entropy of ten classes.
struct ResNetImpl : nn::Module {
  explicit ResNetImpl(std::int64_t width = 16, int blocks_per_stage = 2) {
    stem = register_module("stem", nn::Conv2d(nn::Conv2dOptions(3, width, 3).padding(1).bias(false)));
    stem_norm = register_module("stem_norm", nn::BatchNorm2d(width));
    std::int64_t channels = width;
    for (int stage = 0; stage < 3; ++stage) {
      for (int i = 0; i < blocks_per_stage; ++i) {
        const std::int64_t out = width << stage;
        blocks->push_back(ResidualBlock(channels, out, stage > 0 && i == 0 ? 2 : 1));
        channels = out;
      }
    }
    register_module("blocks", blocks);
    head = register_module("head", nn::Linear(channels, 10));
  }
  at::Tensor loss(const at::Tensor& images, const at::Tensor& labels) {
    at::Tensor x = stem_norm(stem(images)).relu_();
    for (const auto& block : *blocks) x = block->as<ResidualBlock>()->forward(x);
    return torch::cross_entropy_loss(head(x.mean({2, 3})), labels);
  }
  nn::Conv2d stem{nullptr};
  nn::BatchNorm2d stem_norm{nullptr};
  nn::ModuleList blocks;
  nn::Linear head{nullptr};
};
TORCH_MODULE(ResNet);

/// A U-Net (Ronneberger et al. 2015): three levels down, three up, each level's result joined on the way up.
struct UNetImpl : nn::Module {
  explicit UNetImpl(std::int64_t width = 12) {
    std::int64_t channels = 3;
    for (int level = 0; level <= 3; ++level) {
      down->push_back(pair(channels, width << level));
      channels = width << level;
    }
    for (int level = 2; level >= 0; --level) {
      up->push_back(nn::ConvTranspose2d(nn::ConvTranspose2dOptions(channels, width << level, 2).stride(2)));
      joined->push_back(pair(2 * (width << level), width << level));
      channels = width << level;
    }
    register_module("down", down);
    register_module("up", up);
    register_module("joined", joined);
    head = register_module("head", nn::Conv2d(nn::Conv2dOptions(channels, 4, 1)));
  }
  static nn::Sequential pair(std::int64_t in, std::int64_t out) {
    return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1)), nn::BatchNorm2d(out),
                          nn::ReLU(nn::ReLUOptions(true)), nn::Conv2d(nn::Conv2dOptions(out, out, 3).padding(1)),
                          nn::BatchNorm2d(out), nn::ReLU(nn::ReLUOptions(true)));
  }
  at::Tensor loss(const at::Tensor& images, const at::Tensor& labels) {
    std::vector<at::Tensor> skips;
    at::Tensor x = images;
    for (std::size_t i = 0; i < 4; ++i) {
      x = down[i]->as<nn::SequentialImpl>()->forward(x);
      if (i < 3) {
        skips.push_back(x);
        x = torch::max_pool2d(x, 2);
      }
    }
    for (std::size_t i = 0; i < 3; ++i) {
      x = torch::cat({up[i]->as<nn::ConvTranspose2dImpl>()->forward(x), skips[2 - i]}, 1);
      x = joined[i]->as<nn::SequentialImpl>()->forward(x);
    }
    return torch::cross_entropy_loss(head(x), labels);
  }
  nn::ModuleList down, up, joined;
  nn::Conv2d head{nullptr};
};
TORCH_MODULE(UNet);

/// A model and one batch for it.
struct Task {
  std::string name;
  std::shared_ptr<nn::Module> model;
  std::function<at::Tensor()> forward;  ///< the loss
};

inline Task gpt_task(models::GptOptions options, std::int64_t batch, bool bf16 = false) {
  models::Gpt model(options);
  const at::Tensor tokens = torch::randint(0, options.vocabulary, {batch, options.sequence});
  const at::Tensor targets = torch::randint(0, options.vocabulary, {batch, options.sequence});
  return {"gpt", model.ptr(), [=]() mutable {
            const models::AutocastScope autocast(bf16 ? std::optional(at::kBFloat16) : std::nullopt,
                                                 tokens.device().type());
            return model->loss(tokens, targets);
          }};
}

inline Task resnet_task(std::int64_t width, std::int64_t batch, std::int64_t side, int blocks_per_stage = 2) {
  ResNet model(width, blocks_per_stage);
  const at::Tensor images = torch::randn({batch, 3, side, side}), labels = torch::randint(0, 10, {batch});
  return {"resnet", model.ptr(), [=]() mutable { return model->loss(images, labels); }};
}

/// `side` is a multiple of 8.
inline Task unet_task(std::int64_t width, std::int64_t batch, std::int64_t side) {
  UNet model(width);
  const at::Tensor images = torch::randn({batch, 3, side, side}), labels = torch::randint(0, 4, {batch, side, side});
  return {"unet", model.ptr(), [=]() mutable { return model->loss(images, labels); }};
}

}  // namespace snug::testing
