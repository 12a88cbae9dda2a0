#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "snug/models/embedding.h"
#include "snug/models/gpt.h"
#include "snug/models/linear.h"
#include "snug/models/llama.h"
#include "snug/models/lora.h"
#include "snug/parallel/data_parallel.h"
#include "snug/parallel/tensor_group.h"
#include "tests/ops/packed.h"

/// Small models, in parts.
namespace snug::testing {

using models::CausalLmImpl;
using models::LayerParts;
using models::ModelInParts;
using parallel::DataParallel;
using parallel::DataParallelOptions;
using parallel::ProcessGroup;

using Model = std::shared_ptr<CausalLmImpl>;

constexpr std::int64_t kSequence = 64;
/// Tokens: as many in each process, or not.
constexpr std::int64_t kEven = 96, kUneven = 97;

inline Model gpt(std::int64_t vocabulary) {
  torch::manual_seed(1);
  return models::Gpt(
             models::GptOptions{.blocks = 3, .width = 64, .heads = 4, .sequence = kSequence, .vocabulary = vocabulary})
      .ptr();
}
inline Model gpt2(std::int64_t vocabulary, double dropout = 0) {
  torch::manual_seed(2);
  return models::Gpt2(models::Gpt2Options{.layers = 3,
                                          .width = 64,
                                          .inner_width = 256,
                                          .heads = 4,
                                          .vocabulary = vocabulary,
                                          .sequence = kSequence,
                                          .embedding_dropout = dropout,
                                          .residual_dropout = dropout,
                                          .attention_dropout = dropout})
      .ptr();
}
/// Of 8 heads, 4 of them of keys.
inline models::Llama llama_of(std::int64_t vocabulary, std::int64_t width, std::int64_t inner_width, bool tied,
                              std::int64_t blocks = 3) {
  models::LlamaOptions options;
  options.layers = blocks;
  options.width = width;
  options.inner_width = inner_width;
  options.heads = 8;
  options.key_heads = 4;
  options.rotary.width = width / options.heads;
  options.vocabulary = vocabulary;
  options.sequence = kSequence;
  options.tied = tied;
  return models::Llama(options);
}
/// As if they had been trained for a while: a new one multiplies by zero.
inline Model with_adapters(models::Llama model, std::int64_t rank) {
  (void)models::add_lora(*model, {.targets = {"all-linear"}, .rank = rank});
  const torch::NoGradGuard no_grad;
  for (const auto& [name, parameter] : models::lora_parameters(*model)) at::Tensor(parameter).normal_(0, 0.02);
  return model.ptr();
}
inline Model llama(std::int64_t vocabulary, std::int64_t blocks = 3) {
  torch::manual_seed(3);
  return llama_of(vocabulary, 64, 160, false, blocks).ptr();
}
inline Model adapted_llama(std::int64_t vocabulary) {
  torch::manual_seed(3);
  return with_adapters(llama_of(vocabulary, 64, 160, false), 4);
}

/// A Llama whose weights are packed, with adapters (QLoRA).
inline Model packed_llama(std::int64_t vocabulary) {
  torch::manual_seed(4);
  models::Llama model = llama_of(vocabulary, 128, 256, true);  // inputs are whole blocks in 4 processes
  for (const auto& [name, linear] : models::linear_modules(*model)) linear->pack(packed_of(linear->weight));
  for (const auto& module : model->modules()) {
    if (auto* const table = module->as<models::Embedding>()) table->pack(packed_of(table->weight));
  }
  return with_adapters(model, 2);
}

struct Made {
  std::string name;
  std::function<Model()> make;
};
inline std::vector<Made> all_models(std::int64_t vocabulary) {
  return {{"gpt", [=] { return gpt(vocabulary); }},
          {"gpt2", [=] { return gpt2(vocabulary); }},
          {"llama", [=] { return llama(vocabulary); }},
          {"llama with adapters", [=] { return adapted_llama(vocabulary); }}};
}
inline std::vector<Made> with_packed(std::int64_t vocabulary) {
  std::vector<Made> all = all_models(vocabulary);
  all.push_back({"packed llama with adapters", [=] { return packed_llama(vocabulary); }});
  return all;
}
/// Of parameters, and of packed weights.
inline Bytes bytes_of_weights(const CausalLmImpl& model) {
  Bytes all = 0;
  for (const at::Tensor& p : model.parameters()) all += static_cast<Bytes>(p.nbytes());
  const auto count = [&](const ops::Matrix& matrix) {
    if (const auto* const packed = std::get_if<ops::PackedMatrix>(&matrix))
      all += static_cast<Bytes>(packed->blocks.nbytes());
  };
  for (const auto& [name, linear] : models::linear_modules(model)) count(linear->matrix());
  for (const auto& module : model.modules()) {
    if (const auto* const table = module->as<models::Embedding>()) count(table->matrix());
  }
  return all;
}

inline at::Tensor tokens_of(int step) {
  torch::manual_seed(50 + step);
  return torch::randint(0, kEven, {8, kSequence});
}
inline at::Tensor targets_of(const at::Tensor& batch) {
  at::Tensor targets = batch.roll(-1, 1);
  targets.select(1, kSequence - 1).fill_(-100);
  return targets;
}
inline at::Tensor loss_of(CausalLmImpl& model, const at::Tensor& batch) { return model.loss(batch, targets_of(batch)); }

/// A model in parts, and what adds up its summands.
struct Parts {
  Parts(const std::shared_ptr<ProcessGroup>& group, Model whole, models::Between between)
      : model(std::move(whole)),
        found(model->divide(LayerParts{.group = parallel::tensor_group(group), .between = between})),
        together(found.summands, group, {.combine = DataParallelOptions::Combine::Sum}) {}
  std::vector<at::Tensor> take_gradients() {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& p : model->parameters()) {
      gradients.push_back(p.grad().defined() ? p.grad().clone() : at::Tensor());
      at::Tensor(p).mutable_grad() = at::Tensor();
    }
    return gradients;
  }
  Model model;
  ModelInParts found;
  DataParallel together;
};

}  // namespace snug::testing
