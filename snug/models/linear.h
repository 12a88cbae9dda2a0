#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "snug/models/layer_parts.h"
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
  at::Tensor forward(const at::Tensor& x) { return leave(product(x)); }
  /// Of f(x), times the factor if there is one: see ops::activated_linear.
  at::Tensor after(const ops::ActivatedInput& input) { return leave(product_after(input)); }

  // Of a layer that is in parts: forward() and after() are what follows, but for enter(), as several layers may have
  // one input. Of others the first and the last do nothing.

  /// The input of a layer of Columns, where all have it, or a part of its sequences.
  [[nodiscard]] at::Tensor enter(const at::Tensor& x) const;
  /// What this process has of the outputs, or a summand of them without the bias.
  at::Tensor product(const at::Tensor& x);
  at::Tensor product_after(const ops::ActivatedInput& input);
  /// The outputs of a layer of Rows, with the bias, or a part of their sequences.
  [[nodiscard]] at::Tensor leave(const at::Tensor& product) const;
  /// Where random numbers are drawn inside of parts, of what is between layers of Columns and of Rows, ...
  [[nodiscard]] std::unique_ptr<RandomOfParts> random_inside() const;
  /// ... and outside of them, of what leave() returns: nullptr but for parts of sequences.
  [[nodiscard]] std::unique_ptr<RandomOfParts> random_outside() const;

  /// Throws UsageError where this cannot be divided among as many; `name` for its message.
  void check_part(const std::string& name, const LayerLayout& layout, int processes) const;
  /// This process's part of it from now on, and of its adapter.
  void keep_part(const LayerLayout& layout, const LayerParts& parts);
  /// These outputs alone from now on, as of an output projection whose vocabulary is in parts.
  /// What has become of the parameter; nullopt for a packed weight, which is none.
  std::optional<ParameterPart> keep_rows(std::int64_t first, std::int64_t count);
  [[nodiscard]] bool in_parts() const { return part_.has_value() || rows_cut_; }
  /// Whole in each process, of which each has a summand of the gradient: of the adapter, or a bias behind a sum of
  /// which this process has a part.
  [[nodiscard]] std::vector<at::Tensor> summands() const;
  [[nodiscard]] std::vector<ParameterPart> divided() const { return part_ ? part_->own : std::vector<ParameterPart>(); }

  /// The parameter `weight` is no more, and this is used in its place, frozen. Throws Error when shapes differ.
  void pack(ops::PackedMatrix packed);

  /// A packed weight is gone: another process has it.
  void drop_packed() { packed_.reset(); }

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

  struct Part {
    LayerLayout layout;
    LayerParts parts;
    std::vector<ParameterPart> own{};
  };
  [[nodiscard]] bool adds_up() const { return part_ && std::holds_alternative<Rows>(part_->layout); }
  [[nodiscard]] c10::Device device() const { return packed_ ? packed_->blocks.device() : weight.device(); }
  [[nodiscard]] at::Tensor own_bias() const { return adds_up() ? at::Tensor() : bias; }
  [[nodiscard]] at::Tensor out_in() const { return layout_ == WeightLayout::OutIn ? weight : weight.t(); }

  std::int64_t in_, out_;
  WeightLayout layout_;
  std::optional<ops::PackedMatrix> packed_;
  std::shared_ptr<Adapter> adapter_;
  std::optional<Part> part_;
  bool rows_cut_ = false;
};
TORCH_MODULE(Linear);

}  // namespace snug::models
