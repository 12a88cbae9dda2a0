// Data parallel training steps of a GPT on CPUs: gradients added up by rank, or as Gloo does, beside LibTorch's own
// c10d::Reducer, which DistributedDataParallel is made of, in turns in the same processes.
//
// Usage: torchrun --no-python --nproc-per-node N parallel_benchmark [TURNS]. Each turn is one step of each; ratios are
// medians over the turns, with quartiles, of the first process.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "snug/base/clock.h"
#include "snug/base/errors.h"
#include "snug/models/gpt.h"
#include "snug/parallel/data_parallel.h"
#include "snug/parallel/world.h"
#include "tests/parallel/torch_ddp.h"

namespace snug {
namespace {

struct Way {
  std::string name;
  std::function<void()> step;
  std::vector<double> seconds{};
};

double at_share(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

int run(int turns) {
  const auto launched = parallel::launched();
  if (!launched) throw UsageError("parallel_benchmark: start it with torchrun --no-python --nproc-per-node 2");
  at::set_num_threads(1);
  const auto world = parallel::World::meet(*launched);
  torch::manual_seed(0);
  models::Gpt model(models::GptOptions{.blocks = 6, .width = 256, .heads = 4, .sequence = 128, .vocabulary = 2048});
  const std::vector<at::Tensor> parameters = model->parameters();
  torch::manual_seed(1 + launched->rank);
  const at::Tensor batch = torch::randint(0, 2048, {4, 128});
  constexpr Bytes kBucket = 4_MiB;

  const auto with = [&](parallel::DataParallelOptions options) {
    options.bucket = kBucket;
    return [&, options] {
      const parallel::DataParallel together(parameters, world->all(), options);
      model->loss(batch, batch).backward();
    };
  };
  std::vector<Way> ways = {
      {"alone, nothing handed in", [&] { model->loss(batch, batch).backward(); }},
      {"snug, by rank", with({})},
      {"snug, as Gloo does", with({.order = parallel::Order::Anyhow})},
  };
  std::unique_ptr<testing::TorchDdp> ddp;
  ways.push_back({"c10d::Reducer", [&] {
                    ddp->before_forward();
                    const at::Tensor loss = model->loss(batch, batch);
                    ddp->before_backward(loss);
                    loss.backward();
                  }});
  const auto one = [&](Way& way, bool counts) {
    const bool torchs = &way == &ways.back();
    // It keeps its buckets, and its hooks, as long as it lives.
    if (torchs) ddp = std::make_unique<testing::TorchDdp>(parameters, *launched, kBucket);
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      world->all()->run(parallel::Barrier{});
      const double began = monotonic_seconds();
      way.step();
      const double took = monotonic_seconds() - began;
      if (counts && step == 2) way.seconds.push_back(took);
    }
    model->zero_grad();
    if (torchs) ddp.reset();
  };
  for (int turn = 0; turn <= turns; ++turn) {
    for (Way& way : ways) one(way, turn > 0);
  }
  if (launched->rank != 0) return 0;
  fmt::print(
      "# A GPT of {:.1f} MiB of gradients in {} processes of one thread, {} turns\n\n",
      [&] {
        double bytes = 0;
        for (const at::Tensor& p : parameters) bytes += static_cast<double>(p.nbytes());
        return bytes / 1_MiB;
      }(),
      launched->size, turns);
  fmt::print("| | time over c10d::Reducer's | quartiles |\n|---|---|---|\n");
  for (const Way& way : ways) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < way.seconds.size(); ++i) ratios.push_back(way.seconds[i] / ways.back().seconds[i]);
    fmt::print("| {} | x {:.3f} | {:.3f} to {:.3f} |\n", way.name, at_share(ratios, 0.5), at_share(ratios, 0.25),
               at_share(ratios, 0.75));
  }
  return 0;
}

}  // namespace
}  // namespace snug

int main(int argc, char** argv) {
  try {
    return snug::run(argc > 1 ? std::max(std::atoi(argv[1]), 1) : 11);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
