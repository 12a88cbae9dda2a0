#include "snug/models/resnet.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/init.h>
#include <torch/types.h>

#include <algorithm>
#include <cstddef>

#include "snug/base/errors.h"
#include "snug/base/module_scope.h"

namespace snug::models {
namespace {

constexpr std::int64_t kBottleneckExpansion = 4;

std::int64_t expansion(const ResnetBlocks& blocks) {
  return std::holds_alternative<Bottlenecks>(blocks) ? kBottleneckExpansion : 1;
}

/// Without a bias, and padded such that a stride of 1 keeps the size.
torch::nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride) {
  torch::nn::Conv2d made(torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
  torch::nn::init::kaiming_normal_(made->weight, 0, torch::kFanOut, torch::kReLU);
  return made;
}

/// One residual block: convolutions, each with a norm, and a way past them.
class BlockImpl : public torch::nn::Module {
 public:
  struct Shape {
    std::int64_t in, width, stride;
  };

  BlockImpl(const ResnetBlocks& blocks, const Shape& s) : past_(nullptr) {
    const std::int64_t out = s.width * expansion(blocks);
    if (std::holds_alternative<Bottlenecks>(blocks)) {
      add(s.in, s.width, 1, 1);
      add(s.width, s.width, 3, s.stride);
      add(s.width, out, 1, 1);
    } else {
      add(s.in, s.width, 3, s.stride);
      add(s.width, out, 3, 1);
    }
    if (s.stride != 1 || s.in != out) {
      past_ =
          register_module("downsample", torch::nn::Sequential(convolution(s.in, out, 1, s.stride), BatchNorm2d(out)));
    }
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (std::size_t i = 0; i < convolutions_.size(); ++i) {
      if (i > 0) y = at::relu(y);
      y = norms_[i](convolutions_[i](y));
    }
    return at::relu(y + (past_ ? past_->forward(x) : x));
  }

 private:
  void add(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride) {
    const std::size_t number = convolutions_.size() + 1;
    convolutions_.push_back(register_module(fmt::format("conv{}", number), convolution(in, out, kernel, stride)));
    norms_.push_back(register_module(fmt::format("bn{}", number), BatchNorm2d(out)));
  }

  std::vector<torch::nn::Conv2d> convolutions_;
  std::vector<BatchNorm2d> norms_;
  torch::nn::Sequential past_;  // empty when the input has the shape of the output
};
TORCH_MODULE(Block);

void check(const ResnetOptions& o) {
  if (o.width < 1 || std::ranges::min(o.depths) < 1) {
    throw UsageError(fmt::format("resnet: stages of {} blocks and a width of {}; each is to be at least 1",
                                 fmt::join(o.depths, ", "), o.width));
  }
}

torch::nn::Conv2d stem(const ResnetOptions& o) {
  check(o);
  const bool large = std::holds_alternative<LargeImageStem>(o.stem);
  return convolution(o.channels, o.width, large ? 7 : 3, large ? 2 : 1);
}

}  // namespace

ResnetImpl::ResnetImpl(const ResnetOptions& options)
    : options_(options),
      stem_(register_module("conv1", stem(options))),
      stem_norm_(register_module("bn1", BatchNorm2d(options.width))),
      classifier_(nullptr) {
  std::int64_t in = options_.width, width = options_.width;
  for (std::size_t stage = 0; stage < stages_.size(); ++stage, width *= 2) {
    for (std::int64_t i = 0; i < options_.depths[stage]; ++i) {
      stages_[stage]->push_back(Block(options_.blocks, BlockImpl::Shape{in, width, stage > 0 && i == 0 ? 2 : 1}));
      in = width * expansion(options_.blocks);
    }
    register_module(fmt::format("layer{}", stage + 1), stages_[stage]);
  }
  classifier_ = register_module("fc", torch::nn::Linear(in, options_.classes));
}

at::Tensor ResnetImpl::forward(const at::Tensor& images) {
  if (images.dim() != 4 || images.size(1) != options_.channels) {
    throw UsageError(fmt::format("resnet: images of {} for a model of {} channels; give them as NxCxHxW with so many",
                                 fmt::join(images.sizes(), "x"), options_.channels));
  }
  at::Tensor x;
  {
    const ModuleScope scope("conv1");
    x = at::relu(stem_norm_(stem_(images)));
    if (std::holds_alternative<LargeImageStem>(options_.stem)) {
      x = at::max_pool2d(x, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
    }
  }
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    std::size_t number = 0;
    for (auto& block : *stages_[stage]) {
      const ModuleScope scope(fmt::format("layer{}.{}", stage + 1, number++));
      x = block.get<BlockImpl>().forward(x);
    }
  }
  const ModuleScope scope("fc");
  return classifier_(x.mean({2, 3}));
}

at::Tensor ResnetImpl::loss(const at::Tensor& images, const at::Tensor& labels) {
  return at::cross_entropy_loss(forward(images).to(at::kFloat), labels);
}

}  // namespace snug::models
