// A small Llama trained in two processes in each way, beside PyTorch's own ways: make_torch_layouts.py.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "snug/models/llama.h"
#include "snug/parallel/data_parallel.h"
#include "snug/parallel/divide.h"
#include "snug/parallel/pipeline.h"
#include "snug/parallel/tensor_group.h"
#include "snug/replay/streamed_tensors.h"
#include "snug/state/load_weights.h"
#include "snug/state/safetensors.h"
#include "tests/parallel/processes.h"

namespace snug::parallel {
namespace {

using models::Llama;
using testing::in_processes;

const std::filesystem::path& tests_folder() {
  static const std::filesystem::path folder = SNUG_TESTS;
  return folder;
}

const nlohmann::json& reference() {
  static const nlohmann::json all =
      nlohmann::json::parse(std::ifstream(tests_folder() / "parallel" / "torch_layouts.json"));
  return all;
}

Llama llama_with(const std::filesystem::path& file) {
  Llama model(models::LlamaOptions{.layers = 2,
                                   .width = 32,
                                   .inner_width = 48,
                                   .heads = 4,
                                   .key_heads = 2,
                                   .vocabulary = 64,
                                   .sequence = 128,
                                   .rotary = {.width = 8}});
  state::load_weights(*model, state::open_safetensors(tests_folder() / file).tensors, file.string());
  return model;
}
Llama untrained() { return llama_with("models/llama.safetensors"); }
Llama trained_by_torch() { return llama_with("parallel/torch_layouts.safetensors"); }

struct BatchOf {
  at::Tensor inputs, targets;
  [[nodiscard]] BatchOf rows(std::int64_t first, std::int64_t count) const {
    return {inputs.narrow(0, first, count), targets.narrow(0, first, count)};
  }
};
BatchOf batch_at(std::int64_t step) {
  const auto rows = torch::arange(reference().at("batch").get<std::int64_t>()).view({-1, 1}),
             columns = torch::arange(reference().at("sequence").get<std::int64_t>() + 1);
  const at::Tensor tokens =
      (7 * rows + columns * columns + 5 * step + 3 * rows * columns + columns.floor_divide(3)).remainder(64);
  return {tokens.narrow(1, 0, columns.numel() - 1).contiguous(), tokens.narrow(1, 1, columns.numel() - 1).contiguous()};
}

/// Of one process, added up over those that have other parameters, or other elements of them.
double norm_of(const std::vector<at::Tensor>& gradients, ProcessGroup* others) {
  at::Tensor sum = at::zeros({1}, at::kDouble);
  for (const at::Tensor& one : gradients) sum += one.to(at::kDouble).square().sum();
  if (others != nullptr) others->run(AllReduce{sum});
  return std::sqrt(sum.item<double>());
}

/// The weights are of the order of 0.1, and have been added to five times in another order of sums.
void expect_weights(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  double difference = 0, all = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    difference += (found[i] - expected[i]).square().sum().item<double>();
    all += expected[i].square().sum().item<double>();
  }
  EXPECT_LE(std::sqrt(difference / all), 1e-6);
}

struct StepFound {
  double loss = 0, norm = 0;
};

/// `step` goes forward and backward with a batch, and says what it has found; `update` comes behind each.
void train_beside(const std::string& layout, const std::function<StepFound(const BatchOf&)>& step,
                  const std::function<void()>& update) {
  const nlohmann::json& expected = reference().at("layouts").at(layout);
  for (std::size_t i = 0; i < expected.at("losses").size(); ++i) {
    const StepFound found = step(batch_at(static_cast<std::int64_t>(i)));
    const auto loss = expected.at("losses")[i].get<double>(), norm = expected.at("norms")[i].get<double>();
    EXPECT_NEAR(found.loss / loss, 1, 1e-6) << layout << ", step " << i;
    EXPECT_NEAR(found.norm / norm, 1, 1e-6) << layout << ", step " << i;
    update();
  }
}

torch::optim::SGD sgd_of(const std::vector<at::Tensor>& parameters) {
  torch::optim::SGDOptions options(reference().at("rate").get<double>());
  options.momentum(reference().at("momentum").get<double>());
  return torch::optim::SGD(parameters, options);
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& p : parameters) all.push_back(p.grad());
  return all;
}

double mean_over(ProcessGroup& group, const at::Tensor& loss) {
  const at::Tensor sum = loss.detach().to(at::kDouble).view({1}).clone();
  group.run(AllReduce{sum});
  return sum.item<double>() / group.size();
}

BatchOf part_of(const BatchOf& all, const ProcessGroup& group) {
  const std::int64_t count = all.inputs.size(0) / group.size();
  return all.rows(group.rank() * count, count);
}

TEST(TorchLayouts, DataParallelTrainsAsDistributedDataParallel) {
  in_processes(2, [](World& world) {
    ProcessGroup& group = *world.all();
    Llama model = untrained();
    const DataParallel together(model->parameters(), world.all());
    torch::optim::SGD optimizer = sgd_of(model->parameters());
    train_beside(
        "ddp",
        [&](const BatchOf& batch) {
          const BatchOf mine = part_of(batch, group);
          const at::Tensor loss = model->loss(mine.inputs, mine.targets);
          loss.backward();
          return StepFound{mean_over(group, loss), norm_of(gradients_of(model->parameters()), nullptr)};
        },
        [&] {
          optimizer.step();
          optimizer.zero_grad();
        });
    expect_weights(model->parameters(), trained_by_torch()->parameters());
  });
}

/// ZeRO 3 with matrices of 4 KiB and more in shards.
TEST(TorchLayouts, WeightsInShardsTrainAsFullyShard) {
  in_processes(2, [](World& world) {
    ProcessGroup& group = *world.all();
    Llama model = untrained();
    const auto streamed = std::make_shared<StreamedTensors>();
    const auto divided =
        divide(model->parameters(), world, world.all(), 4_KiB,
               [&](const at::Tensor& parameter, auto room) { streamed->add_with_room(parameter, std::move(room)); });
    EXPECT_GE(divided.size(), 9U);
    DataParallel together(model->parameters(), world.all(),
                          {.leaves = DataParallelOptions::Leaves::Shards, .divided = divided});
    std::vector<at::Tensor> shards;
    for (const Shard& shard : together.shards()) shards.push_back(shard.tensor);
    torch::optim::SGD optimizer = sgd_of(shards);
    train_beside(
        "fsdp2",
        [&](const BatchOf& batch) {
          const BatchOf mine = part_of(batch, group);
          const at::Tensor loss = model->loss(mine.inputs, mine.targets);
          loss.backward();
          return StepFound{mean_over(group, loss), norm_of(gradients_of(shards), &group)};
        },
        [&] {
          optimizer.step();
          optimizer.zero_grad();
          together.gather();
          streamed->forget_copies();
        });
    std::vector<at::Tensor> weights;
    for (const at::Tensor& p : model->parameters()) weights.push_back(p.detach().clone());
    expect_weights(weights, trained_by_torch()->parameters());
  });
}

/// What is whole in each process has the same gradient there, and is updated in the same way.
TEST(TorchLayouts, LayersInPartsTrainAsDTensor) {
  for (const bool sequences : {false, true}) {
    in_processes(2, [&](World& world) {
      Llama model = untrained(), expected = trained_by_torch();
      const models::LayerParts parts{.group = tensor_group(world.all()),
                                     .between = sequences ? models::Between::Sequences : models::Between::Whole};
      const models::ModelInParts found = model->divide(parts);
      (void)expected->divide(parts);
      const DataParallel summands(found.summands, world.all(), {.combine = DataParallelOptions::Combine::Sum});
      torch::optim::SGD optimizer = sgd_of(model->parameters());
      train_beside(
          "tensor",
          [&](const BatchOf& batch) {
            const at::Tensor loss = model->loss(batch.inputs, batch.targets);
            loss.backward();
            std::vector<at::Tensor> counted;
            for (const at::Tensor& p : model->parameters()) {
              if (world.all()->rank() == 0 || models::part_of(found.divided, p) != nullptr) counted.push_back(p.grad());
            }
            return StepFound{loss.item<double>(), norm_of(counted, world.all().get())};
          },
          [&] {
            optimizer.step();
            optimizer.zero_grad();
          });
      expect_weights(model->parameters(), expected->parameters());
    });
  }
}

TEST(TorchLayouts, PipelinesTrainAsThoseOfTorch) {
  for (const auto& [name, schedule] : {std::pair("gpipe", plan::PipelineSchedule(plan::FThenB{})),
                                       std::pair("1f1b", plan::PipelineSchedule(plan::OneFOneB{}))}) {
    in_processes(2, [&, schedule = schedule, name = name](World& world) {
      const int rank = world.all()->rank(), micro_batches = reference().at("micro_batches").get<int>();
      Llama model = untrained(), expected = trained_by_torch();
      (void)model->keep_stages({1, 1}, {rank});
      (void)expected->keep_stages({1, 1}, {rank});
      std::vector<at::Tensor> mine, its;
      for (const at::Tensor& p : model->parameters()) {
        if (p.requires_grad()) mine.push_back(p);
      }
      for (const at::Tensor& p : expected->parameters()) {
        if (p.requires_grad()) its.push_back(p);
      }
      BatchOf batch;
      Pipeline pipeline(world.all(), schedule, {[&](const at::Tensor& input, int micro) {
                          const std::int64_t rows = batch.inputs.size(0) / micro_batches;
                          const BatchOf part = batch.rows(micro * rows, rows);
                          const at::Tensor made = model->run_stage(rank, input, part.inputs, part.targets, nullptr);
                          return rank == 1 ? made / micro_batches : made;
                        }});
      torch::optim::SGD optimizer = sgd_of(mine);
      train_beside(
          name,
          [&](const BatchOf& all) {
            batch = all;
            at::Tensor loss = at::zeros({1}, at::kDouble);
            for (const at::Tensor& one : pipeline.step(micro_batches)) loss += one;
            world.all()->run(AllReduce{loss});
            return StepFound{loss.item<double>(), norm_of(gradients_of(mine), world.all().get())};
          },
          [&] {
            optimizer.step();
            optimizer.zero_grad();
          });
      expect_weights(mine, its);
    });
  }
}

}  // namespace
}  // namespace snug::parallel
