#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>

#include "snug/models/parameter.h"
#include "snug/ops/activated_linear.h"
#include "snug/ops/row_tiles.h"

namespace snug::models {

struct LoraOptions;

/// How the matrix of a Linear is stored.
enum class WeightLayout : unsigned char {
  OutIn,  ///< as torch::nn::Linear has it
  InOut,  ///< as the Conv1D of GPT-2's reference has it, and so its files
};

/// y = x W^T + b, with the names of torch::nn::Linear. The bias is part of the multiplication, where torch::nn::Linear
/// adds it in a second pass over inputs of three dimensions. The weight can be replaced by a packed one, and an adapter
/// can be added (lora.h).
class LinearImpl : public torch::nn::Module {
 public:
  /// Weight (out, in), drawn from a normal distribution of that deviation; bias (out) of zeros.
  LinearImpl(std::int64_t in, std::int64_t out, bool bias, double deviation = kInitialDeviation,
             WeightLayout layout = WeightLayout::OutIn);

  /// x (..., in) -> (..., out)
  at::Tensor forward(const at::Tensor& x);
  /// Of f(x), times the factor if there is one: see ops::activated_linear.
  at::Tensor after(const ops::ActivatedInput& input);

  /// The parameter `weight` is no more, and this is used in its place, frozen. Throws Error when shapes differ.
  void pack(ops::PackedMatrix packed);

  /// An adapter of low rank beside the weight, parameters lora_A.weight (rank, in) and lora_B.weight (out, rank): see
  /// add_lora. Throws Error when there is one.
  void adapt(const LoraOptions& options);
  /// Adds the adapter's product to the weight and takes the adapter away; nothing without one. Throws UsageError when
  /// the weight is packed.
  void merge();

  /// (out, in), whatever the layout.
  [[nodiscard]] ops::Matrix matrix() const;
  [[nodiscard]] bool adapted() const { return adapter_ != nullptr; }
  [[nodiscard]] bool packed() const { return packed_.has_value(); }
  /// What the adapter was made with; null when there is none.
  [[nodiscard]] const LoraOptions* adapter_options() const;
  [[nodiscard]] std::int64_t in() const { return in_; }
  [[nodiscard]] std::int64_t out() const { return out_; }
  [[nodiscard]] WeightLayout layout() const { return layout_; }

  at::Tensor weight, bias;  ///< undefined when packed, or when there is none

 private:
  struct Adapter;

  [[nodiscard]] at::Tensor out_in() const { return layout_ == WeightLayout::OutIn ? weight : weight.t(); }

  std::int64_t in_, out_;
  WeightLayout layout_;
  std::optional<ops::PackedMatrix> packed_;
  std::shared_ptr<Adapter> adapter_;
};
TORCH_MODULE(Linear);

}  // namespace snug::models
