#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace snug::models {

/// What an adapter's product is multiplied with.
enum class LoraScale : unsigned char {
  AlphaOverRank,      ///< Hu et al. 2021
  AlphaOverRootRank,  ///< "rsLoRA", Kalajdzievski 2023
};

struct LoraOptions {
  /// Names of linear modules, or ends of them at a dot; * stands for any characters. "all-linear": every one but the
  /// output projection (lm_head).
  std::vector<std::string> targets{"q_proj", "v_proj"};
  std::int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;  ///< of the adapter's input
  LoraScale scale = LoraScale::AlphaOverRank;

  /// What the product of the two matrices is multiplied with.
  [[nodiscard]] double factor() const;
};

class LinearImpl;
using LinearModules = std::vector<std::pair<std::string, std::shared_ptr<LinearImpl>>>;

/// The linear modules of a model by name, in order, less those that adapters are made of.
LinearModules linear_modules(const torch::nn::Module& model);

/// Adds adapters of low rank (Hu et al. 2021) beside the Linear modules that the targets name, and freezes every other
/// parameter of the model. Parameters are fp32 with the names of PEFT's, less its prefix: "<module>.lora_A.weight"
/// (rank, in), "<module>.lora_B.weight" (out, rank). The second begins at zero, so the model is what it was. Returns
/// the names of the adapted modules, in order. Throws UsageError for options out of range, and for a target that names
/// no linear module, with the names there are; the model is then as it was.
std::vector<std::string> add_lora(torch::nn::Module& model, const LoraOptions& options);

/// The adapters' parameters by name, in order.
std::vector<std::pair<std::string, at::Tensor>> lora_parameters(const torch::nn::Module& model);

/// Adds all adapters to the weights and takes them away. Throws UsageError when weights are packed.
void merge_lora(torch::nn::Module& model);

/// Whether a module's name is meant by a target.
bool target_names(std::string_view target, std::string_view module_name);

}  // namespace snug::models
