#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "snug/models/linear.h"
#include "snug/models/task.h"

namespace snug::models {

struct VitOptions {
  std::int64_t layers = 12;
  std::int64_t width = 768;         ///< a multiple of heads
  std::int64_t inner_width = 3072;  ///< of the feed-forward part
  std::int64_t heads = 12;
  std::int64_t image = 224;  ///< height and width of an image, a multiple of those of a patch
  std::int64_t patch = 16;
  std::int64_t channels = 3;
  std::int64_t classes = 1000;
  double norm_epsilon = 1e-12;
  double dropout = 0.0;            ///< of the embedding and of what both parts of a layer add
  double attention_dropout = 0.0;  ///< of attention's probabilities; above 0 it rules out the fused kernels on the CPU
};

/// Options of a model of the paper by its name, for images of 224: "ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32",
/// "ViT-H/14". Throws UsageError for others, with the names there are.
VitOptions vit_options(std::string_view name);
std::vector<std::string> vit_names();

/// A Vision Transformer (Dosovitskiy et al. 2021): patches and a class token, learned positions, pre-norm layers,
/// erf-GELU. Parameters have the names and shapes of the files of Hugging Face's ViTForImageClassification. A plain
/// LibTorch module that knows nothing of memory.
class VitImpl : public torch::nn::Module, public HasTask {
 public:
  /// Throws UsageError when the width is not a multiple of the heads, or the image not of the patch.
  explicit VitImpl(const VitOptions& options);
  ~VitImpl() override;

  /// Images (batch, channels, image, image) -> logits (batch, classes). Throws UsageError for another shape.
  at::Tensor forward(const at::Tensor& images);

  /// Mean cross-entropy in nats of predicting `labels`, int64 (batch): a scalar, fp32.
  at::Tensor loss(const at::Tensor& images, const at::Tensor& labels);

  [[nodiscard]] const VitOptions& options() const { return options_; }
  [[nodiscard]] Task task() const override { return Task::image_classification("classifier"); }

 private:
  class Transformer;

  VitOptions options_;
  std::shared_ptr<Transformer> transformer_;
  Linear classifier_;
};
TORCH_MODULE(Vit);

}  // namespace snug::models
