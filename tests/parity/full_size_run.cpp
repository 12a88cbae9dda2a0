// Runs BERT, ViT and ResNet-50 at their full sizes on what full_size.py gives it, and writes what came out:
//
//   full_size_run FOLDER
//
// For each of bert-masked-lm, bert-classifier, vit and resnet reads FOLDER/NAME.safetensors, the weights, and
// FOLDER/NAME-given.safetensors: input, targets (and mask, types for BERT). Writes FOLDER/NAME-found.safetensors:
// logits, loss, and gradient.PARAMETER; ResNet's are of training, with the buffers after it, and logits.evaluation
// before.
#include <fmt/format.h>
#include <torch/torch.h>

#include <exception>
#include <filesystem>
#include <string>

#include "snug/models/bert.h"
#include "snug/models/resnet.h"
#include "snug/models/vit.h"
#include "snug/state/load_weights.h"
#include "snug/state/safetensors.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

using Named = std::vector<std::pair<std::string, at::Tensor>>;

/// The files of one model.
class Files {
 public:
  Files(const fs::path& folder, const std::string& name)
      : folder_(folder), name_(name), given_(state::open_safetensors(folder / (name + "-given.safetensors")).tensors) {}

  void load(torch::nn::Module& model) const {
    state::load_weights(model, state::open_safetensors(folder_ / (name_ + ".safetensors")).tensors, name_);
  }
  [[nodiscard]] at::Tensor given(const char* name) const { return given_.at(name).read(); }
  [[nodiscard]] at::Tensor targets() const { return given("targets"); }

  void write(const torch::nn::Module& model, Named found) const {
    for (const auto& p : model.named_parameters()) found.emplace_back("gradient." + p.key(), p.value().grad());
    state::write_safetensors(folder_ / (name_ + "-found.safetensors"), {found.begin(), found.end()});
  }

 private:
  fs::path folder_;
  std::string name_;
  state::StoredTensors given_;
};

template <class Model, class Input>
void run(Model model, const Files& files, const Input& input) {
  files.load(*model);
  model->eval();
  const at::Tensor logits = model->forward(input).detach();
  const at::Tensor loss = model->loss(input, files.targets());
  loss.backward();
  files.write(*model, {{"logits", logits}, {"loss", loss.detach()}});
}

void run_resnet(const Files& files) {
  models::Resnet model(models::resnet_options("ResNet-50"));
  files.load(*model);
  model->eval();
  const at::Tensor images = files.given("input"), evaluated = model->forward(images).detach();
  model->train();
  const at::Tensor logits = model->forward(images);
  const at::Tensor loss = at::cross_entropy_loss(logits, files.targets());
  loss.backward();
  Named found{{"logits.evaluation", evaluated}, {"logits", logits.detach()}, {"loss", loss.detach()}};
  for (const auto& b : model->named_buffers()) found.emplace_back("after." + b.key(), b.value());
  files.write(*model, std::move(found));
}

void run_all(const fs::path& folder) {
  models::BertOptions bert = models::bert_options("bert-base-uncased");
  bert.dropout = bert.attention_dropout = 0;
  for (const char* name : {"bert-masked-lm", "bert-classifier"}) {
    const Files files(folder, name);
    const models::BertInput input{files.given("input"), files.given("types"), files.given("mask")};
    if (std::string_view(name) == "bert-masked-lm") {
      run(models::BertMaskedLm(bert), files, input);
    } else {
      run(models::BertClassifier(bert, 2), files, input);
    }
  }
  const Files vit(folder, "vit");
  run(models::Vit(models::vit_options("ViT-B/16")), vit, vit.given("input"));
  run_resnet(Files(folder, "resnet"));
}

}  // namespace
}  // namespace snug

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "full_size_run: give a folder\n");
    return 2;
  }
  try {
    snug::run_all(argv[1]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "full_size_run: {}\n", error.what());
    return 1;
  }
}
