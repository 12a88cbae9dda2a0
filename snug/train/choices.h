#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "snug/models/attention_method.h"
#include "snug/models/context_method.h"
#include "snug/models/lora_scale.h"

/// Values of configuration keys that are one of a few words: an enum each, and its words in one table.
namespace snug::train {

/// How the loss over the vocabulary is computed; see models::VocabularyLoss.
enum class LossKind : unsigned char {
  Auto,  ///< as each kind of model has it
  Plain,
  Tiled,
};

/// How the weights of a pretrained model are kept in memory.
enum class BaseWeights : unsigned char {
  Fp32,
  Bf16,
  Packed,  ///< as the blocks of the GGUF file, frozen: QLoRA
};

enum class Packing : unsigned char {
  None,       ///< windows over the text
  Documents,  ///< rows of whole documents that do not see each other
};

/// What forward and backward compute in.
enum class Compute : unsigned char {
  Fp32,
  Bf16,
  Fp16,  ///< with a loss that is scaled: see optim::GradScaler
  Auto,  ///< bf16 where the processor multiplies it, else fp32
};

/// How weights that train are kept, of new models.
enum class TrainedWeights : unsigned char { Fp32, Bf16 };

/// How weights of few bits are updated; see optim::FewBitWeights.
enum class Updates : unsigned char { Master, Stochastic };

/// What the learning rate does behind its warm-up; see optim::Decay.
enum class LearningRate : unsigned char { Cosine, Constant, Linear, Wsd };

/// Of which norm optimizer.clip_norm is the limit.
enum class NormOrder : unsigned char { Sum, Euclidean, Largest };

/// How what is made again is compared with what was dropped; see VerifyReplay.
enum class VerifyBy : unsigned char { Hashes, Values };

/// The type in which processes add up their gradients.
enum class ReduceIn : unsigned char {
  Gradient,  ///< their own
  Fp32,
  Bf16,
};

/// What each process of a run has a part of, and no other; see parallel::DataParallel.
enum class ShardOf : unsigned char {
  None,
  Optimizer,   ///< what the optimizer keeps, and gradients of the whole step's batch
  Gradients,   ///< the same, and gradients of each micro-batch
  Parameters,  ///< the same, and weights
};

/// Where what stays between steps is: weights, or what the optimizer keeps; see StreamedTensors.
enum class KeptIn : unsigned char {
  Device,    ///< in the device's memory, all the time
  Streamed,  ///< in tiers, and in a window of it while they are used
};

/// What backward may get of what autograd saves: see FitOptions::lossy.
enum class Activations : unsigned char {
  Exact,  ///< the same bits
  Bf16,
  Fp8,
  Int8,
  Int4,
};

/// How training state is written.
enum class StateWrite : unsigned char {
  Background,  ///< while training goes on, as far as there is room for a copy
  Wait,        ///< before it goes on
};

template <class Choice>
inline constexpr auto kWords = nullptr;
template <>
inline constexpr std::array kWords<LossKind>{std::pair{"auto", LossKind::Auto}, std::pair{"plain", LossKind::Plain},
                                             std::pair{"tiled", LossKind::Tiled}};
template <>
inline constexpr std::array kWords<BaseWeights>{std::pair{"fp32", BaseWeights::Fp32},
                                                std::pair{"bf16", BaseWeights::Bf16},
                                                std::pair{"packed", BaseWeights::Packed}};
template <>
inline constexpr std::array kWords<models::LoraScale>{
    std::pair{"alpha/rank", models::LoraScale::AlphaOverRank},
    std::pair{"alpha/sqrt(rank)", models::LoraScale::AlphaOverRootRank}};
template <>
inline constexpr std::array kWords<models::AttentionMethod>{std::pair{"libtorch", models::AttentionMethod::LibTorch},
                                                            std::pair{"products", models::AttentionMethod::Products}};
template <>
inline constexpr std::array kWords<models::ContextMethod>{std::pair{"heads", models::ContextMethod::Heads},
                                                          std::pair{"ring", models::ContextMethod::Ring}};
template <>
inline constexpr std::array kWords<Packing>{std::pair{"none", Packing::None},
                                            std::pair{"documents", Packing::Documents}};
template <>
inline constexpr std::array kWords<Compute>{std::pair{"fp32", Compute::Fp32}, std::pair{"bf16", Compute::Bf16},
                                            std::pair{"fp16", Compute::Fp16}, std::pair{"auto", Compute::Auto}};
template <>
inline constexpr std::array kWords<TrainedWeights>{std::pair{"fp32", TrainedWeights::Fp32},
                                                   std::pair{"bf16", TrainedWeights::Bf16}};
template <>
inline constexpr std::array kWords<ReduceIn>{std::pair{"gradient", ReduceIn::Gradient},
                                             std::pair{"fp32", ReduceIn::Fp32}, std::pair{"bf16", ReduceIn::Bf16}};
template <>
inline constexpr std::array kWords<ShardOf>{
    std::pair{"none", ShardOf::None}, std::pair{"optimizer", ShardOf::Optimizer},
    std::pair{"gradients", ShardOf::Gradients}, std::pair{"parameters", ShardOf::Parameters}};
template <>
inline constexpr std::array kWords<Updates>{std::pair{"master", Updates::Master},
                                            std::pair{"stochastic", Updates::Stochastic}};
template <>
inline constexpr std::array kWords<LearningRate>{
    std::pair{"cosine", LearningRate::Cosine}, std::pair{"constant", LearningRate::Constant},
    std::pair{"linear", LearningRate::Linear}, std::pair{"wsd", LearningRate::Wsd}};
template <>
inline constexpr std::array kWords<NormOrder>{std::pair{"1", NormOrder::Sum}, std::pair{"2", NormOrder::Euclidean},
                                              std::pair{"inf", NormOrder::Largest}};
template <>
inline constexpr std::array kWords<VerifyBy>{std::pair{"hashes", VerifyBy::Hashes},
                                             std::pair{"values", VerifyBy::Values}};
template <>
inline constexpr std::array kWords<KeptIn>{std::pair{"device", KeptIn::Device},
                                           std::pair{"streamed", KeptIn::Streamed}};
template <>
inline constexpr std::array kWords<Activations>{
    std::pair{"exact", Activations::Exact}, std::pair{"bf16", Activations::Bf16}, std::pair{"fp8", Activations::Fp8},
    std::pair{"int8", Activations::Int8}, std::pair{"int4", Activations::Int4}};
template <>
inline constexpr std::array kWords<StateWrite>{std::pair{"background", StateWrite::Background},
                                               std::pair{"wait", StateWrite::Wait}};

/// The word for a choice; empty for a number that is none of them.
template <class Choice>
constexpr std::string_view word(Choice choice) {
  for (const auto& [name, value] : kWords<Choice>) {
    if (value == choice) return name;
  }
  return {};
}

template <class Choice>
constexpr std::optional<Choice> choice_named(std::string_view text) {
  for (const auto& [name, value] : kWords<Choice>) {
    if (text == name) return value;
  }
  return std::nullopt;
}

}  // namespace snug::train
