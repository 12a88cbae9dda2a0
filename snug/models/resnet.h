#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "snug/models/batch_norm.h"

namespace snug::models {

struct BasicBlocks {};  ///< of two 3x3 convolutions
struct Bottlenecks {};  ///< 1x1, 3x3 and 1x1, which gives 4 times as many channels; the 3x3 has the stride
using ResnetBlocks = std::variant<BasicBlocks, Bottlenecks>;

struct LargeImageStem {};  ///< a 7x7 convolution of stride 2, then max-pooling of stride 2: for images of 224, say
struct SmallImageStem {};  ///< a 3x3 convolution of stride 1, no pooling: for images of 32, as CIFAR's
using ResnetStem = std::variant<LargeImageStem, SmallImageStem>;

struct ResnetOptions {
  ResnetBlocks blocks = BasicBlocks{};
  std::array<std::int64_t, 4> depths = {2, 2, 2, 2};  ///< blocks of each stage, at least 1
  ResnetStem stem = LargeImageStem{};
  std::int64_t width = 64;  ///< channels of the first stage; each stage has twice those of the one before
  std::int64_t channels = 3;
  std::int64_t classes = 1000;
};

/// Options of a model by its name: "ResNet-18", "ResNet-34", "ResNet-50", "ResNet-101", "ResNet-152". Throws UsageError
/// for others, with the names there are.
ResnetOptions resnet_options(std::string_view name);
std::vector<std::string> resnet_names();

/// A residual network (He et al. 2016). Parameters and buffers have the names and shapes of torchvision's ResNet. A
/// plain LibTorch module that knows nothing of memory. In several processes: synchronize_batch_norms().
class ResnetImpl : public torch::nn::Module {
 public:
  /// Throws UsageError for a stage without blocks, and for a width below 1.
  explicit ResnetImpl(const ResnetOptions& options);

  /// Images (batch, channels, height, width) -> logits (batch, classes). Throws UsageError for other channels.
  at::Tensor forward(const at::Tensor& images);

  /// Mean cross-entropy in nats of predicting `labels`, int64 (batch): a scalar, fp32.
  at::Tensor loss(const at::Tensor& images, const at::Tensor& labels);

  [[nodiscard]] const ResnetOptions& options() const { return options_; }

 private:
  ResnetOptions options_;
  torch::nn::Conv2d stem_;
  BatchNorm2d stem_norm_;
  std::array<torch::nn::Sequential, 4> stages_;
  torch::nn::Linear classifier_;
};
TORCH_MODULE(Resnet);

}  // namespace snug::models
