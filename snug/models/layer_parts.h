#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <variant>
#include <vector>

#include "snug/base/part_runs.h"
#include "snug/ops/tensor_parallel.h"

namespace snug::models {

/// What each process has between the layers that are in parts: norms, dropout and the residual stream.
enum class Between : std::uint8_t {
  Whole,        ///< all have all of it, alike
  KeptInParts,  ///< the same, and of what a block begins with a plan may keep a part in each: ops::keep_in_parts()
  Sequences     ///< of a part of every sequence (Korthikanti et al. 2022, arXiv:2205.05198): activations are divided
};

/// The processes that have a model's layers in parts (tensor parallel, Shoeybi et al. 2019, arXiv:1909.08053).
struct LayerParts {
  ops::LayerGroup group;
  Between between = Between::Whole;
  [[nodiscard]] bool sequences() const noexcept { return between == Between::Sequences; }
};

/// Random numbers of what is in parts, of which each process draws its own, while what is outside goes on with the same
/// ones in all. While it lives, the default generator of the device has a seed of its own: one that the generator draws
/// in the same way in all processes, + 2718 + the rank in the group (2718 is Megatron-LM's). So all of it follows from
/// that generator's state, which steps that are recorded, and training states, have anyway.
class RandomOfParts {
 public:
  RandomOfParts(int rank, c10::Device device);
  ~RandomOfParts();
  RandomOfParts(const RandomOfParts&) = delete;
  RandomOfParts& operator=(const RandomOfParts&) = delete;

 private:
  at::Generator generator_;
  at::Tensor outside_;
};

/// What a process has of a layer.
struct Columns {
  std::int64_t pieces = 1;  ///< outputs, and biases, of each of so many equal pieces, such as queries, keys and values
};
struct Rows {};  ///< inputs; outputs are added up, and then the whole bias
using LayerLayout = std::variant<Columns, Rows>;

/// For modules whose names end so, at a dot.
struct NamedLayout {
  std::string_view name;
  LayerLayout layout;
};

/// A parameter of which this process has a part under the name of the whole.
struct ParameterPart {
  at::Tensor parameter;
  std::vector<std::int64_t> shape;  ///< of the whole
  PartRuns runs{};                  ///< which of its elements the parameter has
};

/// What has become of a model.
struct ModelInParts {
  /// Whole in each process, with gradients of which each process has a summand: to be added up over the group, as by
  /// parallel::DataParallel with Combine::Sum. With parts of sequences all that is between layers in parts is such,
  /// too: CausalLmImpl::divide() has it here, and divide_layers() leaves it to whoever has made the module.
  std::vector<at::Tensor> summands;
  /// Their norms are those of all processes together, and a file of them would have those of this process alone.
  std::vector<ParameterPart> divided;
};

/// What has become of a model of which a process has some stages of a pipeline.
struct ModelInStages {
  std::vector<ParameterPart> elsewhere;  ///< empty here
  /// Parameters that the first and the last stage have, where they are two, whether they are in this process or not.
  std::vector<at::Tensor> shared;
};

/// Whether it is one of them, and not one like it.
[[nodiscard]] bool is_among(const std::vector<at::Tensor>& tensors, const at::Tensor& tensor);
/// What this process has of it; nullptr where it is none of their parameters.
[[nodiscard]] const ParameterPart* part_of(const std::vector<ParameterPart>& parts, const at::Tensor& parameter);

/// The parameters that train and are no summands: each process has their gradients, of its part, or as all have them.
[[nodiscard]] std::vector<at::Tensor> others_than(const std::vector<at::Tensor>& summands,
                                                  const torch::nn::Module& model);

/// Leaves each process its part of the Linear layers that the table names; all have the same weights before. `heads`:
/// of attention, of which each process has as many. Of a module of one's own, whose forward() calls LinearImpl::enter()
/// with what its layers of Columns have together. Throws UsageError, with the model as it was, where something cannot
/// be divided evenly, a layer is packed, or a name is of none. What `parts` says of what is between layers is for the
/// module to do.
ModelInParts divide_layers(torch::nn::Module& model, const std::vector<NamedLayout>& table, std::int64_t heads,
                           const LayerParts& parts);
/// The layers of BERT and ViT, which have whole sequences in between: divide_layers().
[[nodiscard]] std::vector<NamedLayout> encoder_layouts();

/// A parameter becomes empty, and wants no gradient: others have it.
ParameterPart keep_nothing(const at::Tensor& parameter);
/// A contiguous parameter becomes `count` of its elements along a dimension, from `first` on, in memory of its own.
ParameterPart keep_part(const at::Tensor& parameter, std::int64_t dimension, std::int64_t first, std::int64_t count);
/// The same of part `rank` of `size` of each of its pieces.
ParameterPart keep_piecewise_part(const at::Tensor& parameter, std::int64_t dimension, std::int64_t pieces, int rank,
                                  int size);

}  // namespace snug::models
