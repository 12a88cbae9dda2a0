// Runs SmolLM2-135M as a program of snug's users would, on what smollm2.py gives it, and writes what came out:
//
//   smollm2_run MODEL.gguf FOLDER
//
// Reads FOLDER/given.safetensors: tokens.N (prompts), batches (steps, 1, sequence); FOLDER/start, a PEFT adapter, and
// FOLDER/start_tied, one that has also trained the tied embedding.
// Writes FOLDER/found.safetensors: logits.N, greedy.N, packed.N (logits of packed weights), losses, trained (logits of
// prompt 0 after training), merged (the same of merged weights), tied (the same with start_tied); FOLDER/trained, the
// adapter after training, and FOLDER/tied, start_tied as it was read.
#include <fmt/format.h>
#include <torch/torch.h>

#include <exception>
#include <filesystem>

#include "snug/models/generation.h"
#include "snug/models/lora.h"
#include "snug/optim/adamw.h"
#include "snug/state/safetensors.h"
#include "snug/train/families/llama_files.h"
#include "snug/train/language_model.h"

namespace snug {
namespace {

constexpr std::int64_t kGreedyTokens = 50;

using Named = std::vector<std::pair<std::string, at::Tensor>>;

std::vector<at::Tensor> prompts(const state::StoredTensors& given) {
  std::vector<at::Tensor> all;
  while (given.contains(fmt::format("tokens.{}", all.size()))) {
    all.push_back(given.at(fmt::format("tokens.{}", all.size())).read());
  }
  return all;
}

std::vector<std::int64_t> ids(const at::Tensor& tokens) {
  const at::Tensor row = tokens.contiguous();
  return {row.const_data_ptr<std::int64_t>(), row.const_data_ptr<std::int64_t>() + row.numel()};
}

void infer(const train::LlamaFiles& files, const state::StoredTensors& given, Named& found) {
  const at::NoGradGuard no_grad;
  models::Llama model = files.load(train::BaseWeights::Fp32);
  models::Llama packed = files.load(train::BaseWeights::Packed);
  const auto all = prompts(given);
  for (std::size_t i = 0; i < all.size(); ++i) {
    found.emplace_back(fmt::format("logits.{}", i), model->forward(all[i].unsqueeze(0))[0]);
    found.emplace_back(fmt::format("packed.{}", i), packed->forward(all[i].unsqueeze(0))[0]);
    const auto made = models::generate(*model, ids(all[i]), {.tokens = kGreedyTokens});
    found.emplace_back(fmt::format("greedy.{}", i), at::tensor(made));
  }
}

void finetune(const train::LlamaFiles& files, const state::StoredTensors& given, const std::filesystem::path& folder,
              Named& found) {
  models::Llama model = files.load(train::BaseWeights::Fp32);
  train::load_adapter(*model, folder / "start");
  std::vector<at::Tensor> trained;
  for (const auto& [name, p] : models::lora_parameters(*model)) trained.push_back(p);
  optim::AdamW optimizer(trained, {.weight_decay = 0.1});
  const at::Tensor batches = given.at("batches").read();
  std::vector<double> losses;
  for (std::int64_t i = 0; i < batches.size(0); ++i) {
    const at::Tensor tokens = batches[i], targets = torch::full_like(tokens, -100);
    targets.slice(1, 0, -1).copy_(tokens.slice(1, 1));
    const at::Tensor loss = model->loss(tokens, targets);
    loss.backward();
    losses.push_back(loss.item<double>());
    optimizer.step(2e-4);
    optimizer.zero_grad();
  }
  found.emplace_back("losses", at::tensor(losses));
  train::save_adapter(*model, "SmolLM2-135M", folder / "trained");
  const at::NoGradGuard no_grad;
  model->eval();
  const at::Tensor prompt = given.at("tokens.0").read().unsqueeze(0);
  found.emplace_back("trained", model->forward(prompt)[0]);
  models::merge_lora(*model);
  found.emplace_back("merged", model->forward(prompt)[0]);
}

void read_tied(const train::LlamaFiles& files, const state::StoredTensors& given, const std::filesystem::path& folder,
               Named& found) {
  const at::NoGradGuard no_grad;
  models::Llama model = files.load(train::BaseWeights::Fp32);
  train::load_adapter(*model, folder / "start_tied");
  model->eval();
  found.emplace_back("tied", model->forward(given.at("tokens.0").read().unsqueeze(0))[0]);
  train::save_adapter(*model, "SmolLM2-135M", folder / "tied");
}

}  // namespace
}  // namespace snug

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "smollm2_run: give the GGUF file and a folder\n");
    return 2;
  }
  try {
    const std::filesystem::path folder(argv[2]);
    const auto given = snug::state::open_safetensors(folder / "given.safetensors").tensors;
    const auto files = snug::train::LlamaFiles::open(snug::train::ModelFiles(argv[1]));
    snug::Named found;
    snug::infer(*files, given, found);
    snug::finetune(*files, given, folder, found);
    snug::read_tied(*files, given, folder, found);
    snug::state::write_safetensors(folder / "found.safetensors", {found.begin(), found.end()});
  } catch (const std::exception& error) {
    fmt::print(stderr, "smollm2_run: {}\n", error.what());
    return 1;
  }
}
