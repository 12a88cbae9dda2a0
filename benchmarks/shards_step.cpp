// Training steps of gpt-12x384 with its weights, gradients and AdamW's moments in shards (ZeRO 3), on demand, for what
// measures snug against FSDP2 step by step. A launcher's variables say which process of how many this is.
//
// Usage: shards_step ROWS [BYTES]. Rows of the batch in each process. Without BYTES, or with 0, without a budget of
// any use; with BYTES under that cap, weights and all. First it writes one JSON object, then it trains one step for
// every line of input and answers with its seconds, and in the end it writes another JSON object.
#include <torch/torch.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/clock.h"
#include "snug/memory/device_memory.h"
#include "snug/models/gpt.h"
#include "snug/optim/adamw.h"
#include "snug/parallel/data_parallel.h"
#include "snug/parallel/divide.h"
#include "snug/parallel/group_agreement.h"
#include "snug/parallel/world.h"
#include "snug/plan/does_not_fit.h"
#include "snug/replay/fit.h"

namespace snug {
namespace {

constexpr std::int64_t kVocabulary = 8192, kSequence = 256;
constexpr double kRate = 1e-4;

struct InShards {
  explicit InShards(parallel::World& world)
      : model(models::GptOptions{
            .blocks = 12, .width = 384, .heads = 6, .sequence = kSequence, .vocabulary = kVocabulary}) {
    const auto divided = parallel::divide(
        model->parameters(), world, world.all(), 64_KiB,
        [&](const auto& parameter, auto room) { streamed->add_with_room(parameter, std::move(room)); });
    streamed->set_cost(parallel::measured_gather_cost(world, world.all()));
    together = std::make_unique<parallel::DataParallel>(
        model->parameters(), world.all(),
        parallel::DataParallelOptions{.leaves = parallel::DataParallelOptions::Leaves::Shards, .divided = divided});
    optim::Parameters parts{};
    for (const parallel::Shard& shard : together->shards()) {
      parts.tensors.push_back(shard.tensor);
      parts.parts.push_back({shard.of, shard.index, shard.first});
    }
    optimizer = std::make_unique<optim::AdamW>(parts, optim::AdamWOptions{});
  }
  void update() {
    optimizer->step(kRate);
    optimizer->zero_grad();
    together->gather();
    streamed->forget_copies();
  }
  replay::Rehearsal rehearsal() {
    replay::Rehearsal update([this] {
      optimizer->rehearse();
      together->gather(parallel::Reduction::Purpose::Trial);
    });
    update.parameters = optimizer->parameters();
    update.writes = replay::Rehearsal::Writes::Nothing;
    return update;
  }

  models::Gpt model;
  std::shared_ptr<StreamedTensors> streamed = std::make_shared<StreamedTensors>();
  std::unique_ptr<parallel::DataParallel> together;
  std::unique_ptr<optim::AdamW> optimizer;
};

int run(std::int64_t rows, Bytes budget) {
  const auto launched = parallel::launched();
  if (!launched) throw UsageError("shards_step: start it with a launcher, one process for each part");
  at::set_num_threads(1);
  memory::DeviceMemory& memory = memory::device_memory(c10::kCPU);
  const auto world = parallel::World::meet(*launched);
  torch::manual_seed(0);
  InShards mine(*world);
  torch::manual_seed(1 + launched->rank);
  const at::Tensor tokens = torch::randint(0, kVocabulary, {rows, kSequence});
  const at::Tensor targets = torch::randint(0, kVocabulary, {rows, kSequence});
  const auto step = [&](const at::Tensor& batch) { return mine.model->loss(batch, targets); };
  nlohmann::ordered_json made;
  std::optional<Session> session;
  try {
    session.emplace(fit(step, tokens,
                        {.budget = budget > 0 ? budget : 16_GiB,
                         .streamed = mine.streamed,
                         .update = mine.rehearsal(),
                         .agreement = parallel::agreement_of(world->all())}));
    made = {{"unplanned_peak_bytes", session->plan().unplanned_peak},
            {"predicted_peak_bytes", session->plan().predicted_peak}};
  } catch (const DoesNotFit& error) {
    made = {{"fits", false}, {"problem", error.what()}};
  }
  std::cout << made << std::endl;
  if (!session) return 0;

  memory.reset_peak();
  double loss = 0;
  std::int64_t replayed = 0;
  for (std::string line; std::getline(std::cin, line);) {
    const double started = monotonic_seconds();
    const at::Tensor result = session->backward(step, tokens);
    replayed = session->last_step().replayed_ops;
    mine.update();
    std::cout << monotonic_seconds() - started << std::endl;
    loss = result.item<double>();
  }
  session.reset();
  std::cout << nlohmann::ordered_json{{"peak_bytes", memory.stats().allocated_peak},
                                      {"loss", loss},
                                      {"replayed_ops", replayed}}
            << std::endl;
  return 0;
}

}  // namespace
}  // namespace snug

int main(int argc, char** argv) {
  try {
    if (argc < 2) throw snug::UsageError("usage: shards_step ROWS [BYTES]");
    return snug::run(std::stoll(argv[1]), argc > 2 ? std::stoll(argv[2]) : 0);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
}
