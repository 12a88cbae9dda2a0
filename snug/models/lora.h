#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "snug/models/lora_scale.h"

namespace snug::models {

struct LoraOptions {
  /// Names of linear modules, or ends of them at a dot, as a shell's patterns. "all-linear": every one but the
  /// output projection (lm_head).
  std::vector<std::string> targets{"q_proj", "v_proj"};
  /// Names of modules, or ends of them at a dot, that train whole and get no adapter. The heads of the model's task
  /// (see Task) are among them without being named: nobody has trained them yet.
  std::vector<std::string> modules_to_save{};
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
/// parameter of the model but those of modules_to_save. Parameters are fp32 with the names of PEFT's, less its prefix:
/// "<module>.lora_A.weight" (rank, in), "<module>.lora_B.weight" (out, rank). The second begins at zero, so the model
/// is what it was. Returns the names of the adapted modules, in order. Throws UsageError for options out of range, for
/// a target that names no linear module but those of modules_to_save, with the names there are, and for one of
/// modules_to_save that names no module with parameters; the model is then as it was.
std::vector<std::string> add_lora(torch::nn::Module& model, const LoraOptions& options);

/// The adapters' parameters by name, in order.
std::vector<std::pair<std::string, at::Tensor>> lora_parameters(const torch::nn::Module& model);

/// What the adapters of a model were made with, its modules_to_save with the heads of its task; null when it has none.
const LoraOptions* lora_options(const torch::nn::Module& model);

/// Parameters and buffers of the modules that train whole beside the adapters, by name, in order.
std::vector<std::pair<std::string, at::Tensor>> whole_modules(const torch::nn::Module& model);

/// Adds all adapters to the weights and takes them away. Throws UsageError when weights are packed.
void merge_lora(torch::nn::Module& model);

/// Whether a module's name is meant by a target: a shell's pattern (fnmatch) for the name, or for its end behind a dot.
bool target_names(const std::string& target, const std::string& module_name);

/// Whether a parameter is of a module that one of `modules` names, or of one inside of it.
bool is_inside(std::string_view parameter, const std::vector<std::string>& modules);

}  // namespace snug::models
