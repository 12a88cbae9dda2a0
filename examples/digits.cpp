// Trains a residual network and a Vision Transformer on scikit-learn's handwritten digits, each under half of the
// memory that its step would take:
//
//   digits DIGITS.safetensors
//
// The file has images, fp32 (1797, 1, 8, 8), and labels, int64 (1797); tests/digits/run.sh makes it. Exits with 1 when
// a network stays below 97 % on the fifth that it was not trained on, or its memory passes the budget.
#include <fmt/format.h>
#include <snug/models/resnet.h>
#include <snug/models/vit.h>
#include <snug/optim/adamw.h>
#include <snug/optim/schedule.h>
#include <snug/report/table.h>
#include <snug/snug.h>
#include <snug/state/safetensors.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr double kWanted = 0.97;

struct Digits {
  torch::Tensor images, labels, test_images, test_labels;
};

Digits load(const char* path) {
  const auto tensors = snug::state::open_safetensors(path).tensors;
  const torch::Tensor images = tensors.at("images").read(), labels = tensors.at("labels").read();
  torch::manual_seed(0);
  const torch::Tensor order = torch::randperm(images.size(0));
  const std::int64_t test = images.size(0) / 5;
  const torch::Tensor held_out = order.narrow(0, 0, test), rest = order.narrow(0, test, images.size(0) - test);
  return {images.index_select(0, rest), labels.index_select(0, rest), images.index_select(0, held_out),
          labels.index_select(0, held_out)};
}

/// Each image moved by up to one pixel, so that no network learns them by heart.
torch::Tensor moved(const torch::Tensor& images) {
  namespace F = torch::nn::functional;
  const torch::Tensor padded = F::pad(images, F::PadFuncOptions({1, 1, 1, 1}));
  torch::Tensor out = torch::empty_like(images);
  const torch::Tensor shifts = torch::randint(0, 3, {images.size(0), 2});
  for (std::int64_t i = 0; i < images.size(0); ++i) {
    const auto down = shifts[i][0].item<std::int64_t>(), right = shifts[i][1].item<std::int64_t>();
    out[i].copy_(padded[i].narrow(1, down, images.size(2)).narrow(2, right, images.size(3)));
  }
  return out;
}

/// The mean of a model's weights and buffers over so many of the latest steps, with the older ones fading: on so few
/// images it does better than any single step's (Polyak and Juditsky 1992).
class Average {
 public:
  Average(torch::nn::Module& model, double steps) : least_(1 / steps) {
    for (const auto& tensors : {model.parameters(), model.buffers()}) {
      for (const torch::Tensor& t : tensors) {
        if (t.is_floating_point()) pairs_.push_back({t.detach(), t.detach().clone()});
      }
    }
  }

  void add() {
    const double share = std::max(least_, 1.0 / static_cast<double>(++count_));
    for (auto& [now, mean] : pairs_) mean.lerp_(now, share);
  }
  void use() {
    for (auto& [now, mean] : pairs_) now.copy_(mean);
  }

 private:
  double least_;
  std::int64_t count_ = 0;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> pairs_;
};

struct Recipe {
  std::int64_t batch, epochs;
  double learning_rate;
  double averaged_steps = 0;  ///< see Average; 0: no average
};

struct Result {
  double accuracy = 0;
  snug::Bytes unplanned = 0, budget = 0, peak = 0;
  std::int64_t replayed = 0;
};

template <class Model>
Result train(Model& model, const Digits& digits, const Recipe& recipe) {
  const std::int64_t batch = recipe.batch, batches = digits.images.size(0) / batch;
  snug::optim::AdamW optimizer(model->parameters(), {.weight_decay = 0.05});
  const snug::optim::Schedule schedule{recipe.learning_rate, 10, recipe.epochs * batches,
                                       snug::optim::decays::Cosine{0.02}};
  torch::Tensor images = digits.images.narrow(0, 0, batch).clone(), labels = digits.labels.narrow(0, 0, batch).clone();
  std::optional<Average> average;
  if (recipe.averaged_steps > 0) average.emplace(*model, recipe.averaged_steps);
  const auto step = [&] { return model->loss(images, labels); };

  auto& memory = snug::memory::device_memory(torch::kCPU);
  Result result;
  snug::replay::RecordedStep recorded = snug::replay::record_step(step, memory, {.update = optimizer});
  result.unplanned = snug::plan::make_plan(recorded.graph, "none", std::nullopt).predicted_peak;
  result.budget = result.unplanned / 2;
  snug::Session session(std::move(recorded), "optimal", snug::plan::Budget::for_limit(result.budget), memory);
  memory.release_cached();
  memory.reset_peak();
  std::int64_t number = 0;
  for (std::int64_t epoch = 0; epoch < recipe.epochs; ++epoch) {
    const torch::Tensor order = torch::randperm(digits.images.size(0));
    for (std::int64_t i = 0; i < batches; ++i) {
      const torch::Tensor rows = order.narrow(0, i * batch, batch);
      images.copy_(moved(digits.images.index_select(0, rows)));
      labels.copy_(digits.labels.index_select(0, rows));
      session.backward(step);
      optimizer.step(schedule.at(number++));
      optimizer.zero_grad();
      if (average) average->add();
    }
  }
  result.peak = memory.stats().mapped_peak;
  result.replayed = session.last_step().replayed_ops;
  const torch::NoGradGuard no_grad;
  if (average) average->use();
  model->eval();
  result.accuracy = model->forward(digits.test_images)
                        .argmax(1)
                        .eq(digits.test_labels)
                        .to(torch::kDouble)
                        .mean()
                        .template item<double>();
  return result;
}

std::vector<std::string> row(const char* name, const Result& r) {
  return {name,
          fmt::format("{:.1f} %", 100 * r.accuracy),
          snug::format_bytes(r.unplanned),
          snug::format_bytes(r.budget),
          snug::format_bytes(r.peak),
          fmt::format("{}", r.replayed)};
}

bool good(const Result& r) { return r.accuracy >= kWanted && r.peak <= r.budget; }

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "digits: give the file of images\n");
    return 2;
  }
  try {
    const Digits digits = load(argv[1]);
    snug::models::Resnet resnet(
        snug::models::ResnetOptions{.stem = snug::models::SmallImageStem{}, .width = 8, .channels = 1, .classes = 10});
    const Result of_resnet = train(resnet, digits, {.batch = 1437, .epochs = 80, .learning_rate = 1e-2});
    snug::models::Vit vit(snug::models::VitOptions{.layers = 4,
                                                   .width = 64,
                                                   .inner_width = 128,
                                                   .heads = 4,
                                                   .image = 8,
                                                   .patch = 2,
                                                   .channels = 1,
                                                   .classes = 10,
                                                   .dropout = 0.0});
    const Result of_vit =
        train(vit, digits, {.batch = 128, .epochs = 300, .learning_rate = 1e-3, .averaged_steps = 300});
    const std::vector<std::string> header{"model",         "test accuracy", "unplanned peak",
                                          "budget (50 %)", "measured peak", "replayed a step"};
    const std::vector<std::vector<std::string>> rows{row("ResNet-18, width 8", of_resnet),
                                                     row("ViT, 4 layers of 64", of_vit)};
    std::fputs(snug::report::render_table("digits: 359 images of 1,797 held out", header, rows).c_str(), stdout);
    return good(of_resnet) && good(of_vit) ? 0 : 1;
  } catch (const snug::Error& error) {
    fmt::print(stderr, "digits: {}\n", error.what());
    return error.exit_code();
  }
}
