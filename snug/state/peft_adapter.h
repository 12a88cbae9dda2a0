#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "snug/state/divided_tensors.h"
#include "snug/state/stored_tensor.h"

namespace snug::state {

/// The output projection of a causal language model, as Hugging Face's models name it.
inline constexpr const char* kOutputProjection = "lm_head.weight";

/// A LoRA adapter as Hugging Face's PEFT saves it: a folder with adapter_config.json and adapter_model.safetensors.
struct PeftAdapter {
  std::string base{};  ///< name of the model it is for; may be empty
  double alpha = 8;
  double dropout = 0;
  bool root_of_rank = false;           ///< use_rslora
  std::int64_t rank = 8;               ///< of every module
  std::vector<std::string> targets{};  ///< target_modules as they were given
  std::string task_type{};             ///< "CAUSAL_LM", "SEQ_CLS", ...; may be empty
  bool fan_in_fan_out = false;  ///< the model stores the matrices of its targets (in, out); these here it does not
  /// Names, or ends of them at a dot, of modules that were trained whole. PEFT means ends that begin anywhere: what is
  /// opened names the modules in full where that is more, and who writes has to ("norm" is "input_layernorm", too).
  std::vector<std::string> modules_to_save{};
  /// ensure_weight_tying: where the model's output projection is its token embedding, and one of them was trained
  /// whole, so was the other, with the same weights; else PEFT trains it apart. `whole` has both then.
  bool tied = false;
  StoredTensors tensors{};  ///< "<module>.lora_A.weight" (rank, in), "<module>.lora_B.weight" (out, rank)
  StoredTensors whole{};    ///< parameters of modules_to_save by name, and kOutputProjection where it is tied
  StoredTensors bases{};    ///< weights of adapted modules that PEFT has stored beside them, by module; not written

  /// Names of the modules that it has both matrices for, in order.
  [[nodiscard]] std::vector<std::string> modules() const;
};

/// Opens such a folder. Throws UsageError when there is none, when a module has one matrix or two that do not fit
/// together, when one of modules_to_save has no weights, when its settings are damaged, and for adapters that do more
/// than add products and replace modules (DoRA, biases, other ranks or alphas for some modules); DamagedFile when the
/// file of weights is not what its format says.
PeftAdapter open_peft_adapter(const std::filesystem::path& folder);

/// Writes one that PEFT reads; each file is whole or not there. `tensors`: by name, in place of `adapter.tensors` and
/// `adapter.whole`. Throws as write_safetensors does.
void write_peft_adapter(const std::filesystem::path& folder, const PeftAdapter& adapter, const NamedSources& tensors);

}  // namespace snug::state
