// Weights in shards, beside one process that has all of them.
#include "snug/parallel/divide.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "snug/base/errors.h"
#include "snug/base/hash.h"
#include "snug/memory/owned_contents.h"
#include "snug/optim/adamw.h"
#include "snug/parallel/group_agreement.h"
#include "snug/replay/fit.h"
#include "tests/parallel/processes.h"
#include "tests/parallel/shard_tiers.h"
#include "tests/parallel/trained_gpt.h"

namespace snug::parallel {
namespace {

using testing::batch_of;
using testing::expect_same;
using testing::in_processes;
using testing::Trained;

constexpr Bytes kSmallest = 16_KiB;

/// A model of which each process has a part of the weights, of the gradients, and of what the optimizer keeps.
struct InShards {
  /// `tier`: where its parts are, too.
  explicit InShards(World& world, Bytes smallest = kSmallest, Bytes bucket = 64_KiB,
                    const std::optional<StreamOptions>& tier = std::nullopt)
      : streamed(std::make_shared<StreamedTensors>(tier.value_or(StreamOptions()))) {
    StreamShard stream, arrived;
    if (tier) {
      stream = [&](const at::Tensor& shard) { streamed->add({shard}); };
      arrived = [&](const at::Tensor& shard) { streamed->take_gradient(shard); };
    }
    divided = divide(
        trained.parameters(), world, world.all(), smallest,
        [&](const at::Tensor& parameter, std::unique_ptr<memory::ContentsRoom> room) {
          streamed->add_with_room(parameter, std::move(room));
        },
        stream);
    streamed->set_cost(measured_gather_cost(world, world.all(), stream));
    together = std::make_unique<DataParallel>(trained.parameters(), world.all(),
                                              DataParallelOptions{.combine = DataParallelOptions::Combine::Sum,
                                                                  .leaves = DataParallelOptions::Leaves::Shards,
                                                                  .divided = divided,
                                                                  .bucket = bucket,
                                                                  .arrived = arrived});
    optim::Parameters parts{};
    for (const Shard& shard : together->shards()) {
      parts.tensors.push_back(shard.tensor);
      parts.parts.push_back({shard.of, shard.index, shard.first});
    }
    optimizer = std::make_unique<optim::AdamW>(parts, optim::AdamWOptions{});
  }
  void update() {
    optimizer->step(0.01);
    optimizer->zero_grad();
    streamed->forget_copies();  // written back, where they are streamed
    together->gather();
    streamed->forget_copies();  // what has come meanwhile
  }
  /// Rehearsed: the memory of it alone.
  replay::Rehearsal rehearsal() {
    replay::Rehearsal update([this] {
      optimizer->rehearse();
      together->gather(Reduction::Purpose::Trial);
    });
    update.parameters = optimizer->parameters();
    update.writes = replay::Rehearsal::Writes::Nothing;
    return update;
  }

  /// Of the parameters, which are put together from them.
  [[nodiscard]] Bytes streamed_weights() const {
    Bytes bytes = 0;
    for (const DividedParameter& one : divided) bytes += static_cast<Bytes>(one.parameter.nbytes());
    return bytes;
  }

  Trained trained;
  std::shared_ptr<StreamedTensors> streamed;
  std::vector<DividedParameter> divided;
  std::unique_ptr<DataParallel> together;
  std::unique_ptr<optim::AdamW> optimizer;
};

std::vector<at::Tensor> after_steps_of_one(int size, int steps) {
  Trained one;
  optim::AdamW whole(one.parameters(), {});
  for (int step = 0; step < steps; ++step) {
    for (int rank = 0; rank < size; ++rank) one.backward(batch_of(rank, step), 1.0 / size);
    whole.step(0.01);
    whole.zero_grad();
  }
  return one.parameters();
}

void without_a_plan(World& world, Bytes smallest, std::size_t divided, Bytes bucket = 64_KiB,
                    const std::optional<StreamOptions>& tier = std::nullopt) {
  const int size = world.all()->size();
  InShards mine(world, smallest, bucket, tier);
  EXPECT_EQ(mine.divided.size(), divided);
  for (int step = 0; step < 3; ++step) {
    mine.trained.backward(batch_of(world.all()->rank(), step), 1.0 / size);
    // The others must not go on with what this one has yet to update.
    if (world.all()->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    mine.update();
  }
  mine.streamed->bring_back();
  expect_same(after_steps_of_one(size, 3), mine.trained.parameters(), "three steps");
}

/// One goes forward once more than the other, as with another number of validation batches.
TEST(Divided, ProcessesMayRunWhatOthersDoNot) {
  in_processes(2, [](World& world) {
    InShards mine(world);
    const int rank = world.all()->rank();
    for (int step = 0; step < 2; ++step) {
      for (int i = 0; i < 3 * rank; ++i) {
        const torch::NoGradGuard no_grad;
        EXPECT_TRUE(mine.trained.loss(batch_of(7)).isfinite().item<bool>());
      }
      mine.trained.backward(batch_of(rank, step), 0.5);
      mine.update();
    }
    mine.streamed->bring_back();
    expect_same(after_steps_of_one(2, 2), mine.trained.parameters(), "two steps");
  });
}

TEST(Divided, WeightsAreThoseOfOneProcessInTwo) {
  in_processes(2, [](World& world) { without_a_plan(world, kSmallest, 10); });
}
TEST(Divided, WeightsAreThoseOfOneProcessInThree) {
  in_processes(3, [](World& world) { without_a_plan(world, kSmallest, 10, 4_KiB); });
}
/// Nothing that all do behind an update has them wait for each other, but for what is there for that.
TEST(Divided, WeightsAreThoseOfOneProcessWhereAllOfThemAre) {
  in_processes(2, [](World& world) { without_a_plan(world, 1, Trained().parameters().size()); });
}

TEST(Divided, WeightsWhosePartsAreInATierAreThoseOfOneProcess) {
  for (const int size : {2, 3}) {
    in_processes(size, [](World& world) {
      for (const StreamOptions& tier : testing::shard_tiers()) without_a_plan(world, kSmallest, 10, 64_KiB, tier);
    });
  }
}

/// Plans, window and gathers: the cap holds in each, and all have the same plan, though one of them is slower.
void within_a_budget_of_weights(World& world, const std::optional<StreamOptions>& tier = std::nullopt) {
  const int size = world.all()->size(), rank = world.all()->rank();
  memory::DeviceMemory& memory = testing::cpu();
  InShards mine(world, kSmallest, 64_KiB, tier);
  const auto step = [&](const at::Tensor& batch) {
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    return mine.trained.loss(batch) * (1.0 / size);
  };
  const auto fitted = [&](Bytes budget) {
    return fit(step, batch_of(rank, 0),
               {.budget = budget,
                .streamed = mine.streamed,
                .update = mine.rehearsal(),
                .agreement = agreement_of(world.all())});
  };
  Bytes budget = 0;  // the same in all
  {
    const Session all = fitted(1_GiB);
    budget = all.plan().unplanned_peak * (tier ? 44 : 66) / 100;
  }
  Session session = fitted(budget);
  const std::string plan = to_json(session.plan()).dump();
  const auto hash = static_cast<std::int64_t>(hash_64(std::as_bytes(std::span(plan))) >> 1U);
  {
    const at::Tensor of_all = torch::full({2}, hash, at::kLong);
    of_all[1].neg_();
    world.all()->run(AllReduce{of_all, Reduce::Max});
    EXPECT_EQ(of_all[0].item<std::int64_t>(), -of_all[1].item<std::int64_t>()) << "one plan";
  }
  Bytes written = -1;
  for (int i = 0; i < 3; ++i) {
    memory.reset_peak();
    session.backward(step, batch_of(rank, i));
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    if (tier) {
      EXPECT_GT(mine.streamed->totals().out, written) << "the update's results";
      written = mine.streamed->totals().out;
    } else {
      EXPECT_GT(session.last_step().replayed_ops, 0);
    }
    EXPECT_EQ(session.last_step().evictions, 0);
    mine.update();
    EXPECT_LE(memory.stats().allocated_peak, budget);
    at::Tensor most = torch::full({}, memory.stats().allocated_peak, at::kLong);
    world.all()->run(AllReduce{most, Reduce::Max});
    EXPECT_EQ(most.item<std::int64_t>(), session.plan().predicted_peak);
  }
}

TEST(Divided, WeightsUnderABudgetInTwoProcesses) {
  in_processes(2, [](World& world) { within_a_budget_of_weights(world); });
}
TEST(Divided, WeightsUnderABudgetInFourProcesses) {
  in_processes(4, [](World& world) { within_a_budget_of_weights(world); });
}
TEST(Divided, WeightsWhosePartsAreInATierUnderABudget) {
  in_processes(2, [](World& world) {
    for (const StreamOptions& tier : testing::shard_tiers()) within_a_budget_of_weights(world, tier);
  });
}

/// 4 bytes of each weight, gradient and moment, a quarter of each in each of four (Rajbhandari et al. 2020, table 1).
TEST(Divided, TakeWhatZeroSays) {
  in_processes(4, [](World& world) {
    memory::DeviceMemory& memory = testing::cpu();
    torch::manual_seed(0);
    const Bytes before = memory.stats().allocated;
    models::Gpt model(models::GptOptions{.blocks = 4, .width = 384, .heads = 6, .sequence = 16, .vocabulary = 2048});
    std::int64_t elements = 0;
    for (const at::Tensor& p : model->parameters()) elements += p.numel();
    StreamedTensors streamed;
    const auto divided = divide(model->parameters(), world, world.all(), 64_KiB,
                                [&](const at::Tensor& p, auto room) { streamed.add_with_room(p, std::move(room)); });
    DataParallel parallel(model->parameters(), world.all(),
                          {.leaves = DataParallelOptions::Leaves::Shards, .divided = divided});
    std::vector<at::Tensor> shards;
    for (const Shard& shard : parallel.shards()) shards.push_back(shard.tensor);
    const optim::AdamW optimizer(shards, {});
    {
      const at::Tensor batch = torch::randint(0, 2048, {2, 16});
      model->loss(batch, batch).backward();
    }
    const auto taken = static_cast<double>(memory.stats().allocated - before);
    const double zero = static_cast<double>(elements) * 16 / 4;
    EXPECT_NEAR(taken / zero, 1, 0.02) << taken << " of " << zero;
  });
}

/// Shards of weights, of their gradients and of moments are in the tier, to the byte: in their place there is memory
/// for answers, for each of the others.
TEST(Divided, WeightsWhosePartsAreInATierLeaveNothingBehind) {
  in_processes(4, [](World& world) {
    memory::DeviceMemory& memory = testing::cpu();
    Bytes shards = 0, answers = 0, raw = 0;
    const auto taken = [&](const std::optional<StreamOptions>& tier) {
      std::vector<Bytes> now;  // with the model and the optimizer's moments, with gradients, after an update
      const Bytes before = memory.stats().allocated;
      InShards mine(world, kSmallest, 64_KiB, tier);
      shards = answers = raw = 0;
      for (const DividedParameter& one : mine.divided) {
        const auto bytes = static_cast<Bytes>(one.shard.nbytes());
        EXPECT_EQ(memory::has_owner(one.shard), tier.has_value());
        raw += bytes;
        shards += memory.rounded(bytes);
        answers = std::max(answers, 3 * memory.rounded(2 * bytes));
      }
      now.push_back(memory.stats().allocated - before);
      mine.trained.backward(batch_of(world.all()->rank(), 0), 0.25);
      now.push_back(memory.stats().allocated - before);
      mine.optimizer->step(0.01);
      now.push_back(memory.stats().allocated - before);
      if (tier) {
        EXPECT_EQ(mine.streamed->totals().bytes, 4 * raw + mine.streamed_weights());
      }
      world.all()->run(Barrier{});
      return now;
    };
    (void)taken(std::nullopt);  // what is made once
    const std::vector<Bytes> there = taken(std::nullopt);
    for (const StreamOptions& tier : testing::shard_tiers()) {
      const std::vector<Bytes> now = taken(tier);
      EXPECT_EQ(now[0], there[0] - 3 * shards + answers);
      EXPECT_EQ(now[1], there[1] - 4 * shards + answers);
      EXPECT_EQ(now[2], there[2] - 4 * shards + answers);
    }
  });
}

}  // namespace
}  // namespace snug::parallel
