// Weights in shards, beside one process that has all of them.
#include "snug/parallel/divide.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "snug/base/errors.h"
#include "snug/base/hash.h"
#include "snug/memory/byte_tensor.h"
#include "snug/optim/adamw.h"
#include "snug/parallel/group_agreement.h"
#include "snug/replay/fit.h"
#include "tests/parallel/processes.h"
#include "tests/parallel/trained_gpt.h"

namespace snug::parallel {
namespace {

using testing::batch_of;
using testing::Ended;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::in_processes;
using testing::outcomes_of;
using testing::same_bits;
using testing::Trained;

TEST(ShardedRoom, HasAPartAndPutsAllTogether) {
  in_processes(3, [](World& world) {
    for (const std::int64_t elements : {std::int64_t{5000}, std::int64_t{300}, std::int64_t{1}}) {
      const at::Tensor whole = torch::arange(elements, at::kFloat);
      const auto exchange = std::make_shared<ShardExchange>(world);
      ShardedRoom room(exchange, whole, 7);
      EXPECT_LE(room.shard().numel(), (elements + 2) / 3 + kShardUnit);
      (void)room.write(memory::byte_tensor(whole.storage(), static_cast<Bytes>(whole.nbytes())));
      {
        const torch::NoGradGuard no_grad;
        room.shard().mul_(2);  // as an optimizer does
      }
      exchange->meet();
      const at::Tensor read = torch::empty({room.bytes()}, at::kByte), ahead = torch::empty({room.bytes()}, at::kByte);
      room.read_now(read);
      room.read(ahead, {}).wait();
      for (const at::Tensor& bytes : {read, ahead})
        EXPECT_TRUE(same_bits(bytes.view(at::kFloat).narrow(0, 0, elements), whole * 2)) << elements;
    }
  });
}

at::Tensor offered_by(int rank, std::int64_t number) {
  return torch::full({1000}, static_cast<float>(100 * rank + number));
}

/// Each in an order of its own, as often as it likes, and some while others do something else.
TEST(ShardExchange, AnswersWhoeverAsksWheneverTheyDo) {
  in_processes(4, [](World& world) {
    const int rank = world.all()->rank();
    ShardExchange exchange(world);
    std::vector<at::Tensor> mine;
    for (std::int64_t number = 0; number < 5; ++number) {
      mine.push_back(offered_by(rank, number));
      exchange.offer(number, mine.back());
    }
    exchange.meet();
    if (rank == 3) {  // asks for nothing, and is busy, or waits in a collective
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    } else {
      std::mt19937 random(static_cast<unsigned>(rank));  // NOLINT: the same each time
      for (int i = 0; i < 100; ++i) {
        std::vector<ShardExchange::Fetch> under_way;
        std::vector<std::pair<at::Tensor, at::Tensor>> found;
        for (int k = 0; k < 3; ++k) {
          const int from = (rank + 1 + static_cast<int>(random() % 3)) % 4;
          const auto number = static_cast<std::int64_t>(random() % 5);
          found.emplace_back(torch::empty({1000}), offered_by(from, number));
          under_way.push_back(exchange.fetch(from, number, found.back().first));
        }
        for (ShardExchange::Fetch& fetch : under_way) fetch.wait();
        for (const auto& [got, expected] : found) EXPECT_TRUE(same_bits(got, expected));
      }
    }
    world.all()->run(Barrier{});
    EXPECT_EQ(exchange.fetches(), rank == 3 ? 0 : 300);
  });
}

TEST(ShardExchange, TellsWhoAsksThatTheOtherIsGoneOrHangs) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    std::optional<std::chrono::steady_clock::time_point> stopped;
    const std::vector<Ended> ended = outcomes_of(
        2,
        [&](const Launched& launched) {
          const auto world = World::meet(launched, {.timeout = std::chrono::seconds(2)});
          ShardExchange exchange(*world);
          const at::Tensor mine = torch::ones({1000}), other = torch::empty({1000});
          exchange.offer(0, mine);
          exchange.meet();
          if (launched.rank == 1) ::raise(signal);
          for (int i = 0; i < 1'000'000; ++i) exchange.fetch(1, 0, other).wait();
        },
        30,
        [&](const std::vector<int>& ids) {
          if (::kill(ids[0], 0) != 0) ::kill(ids[1], SIGKILL);  // the one that asks has ended
        });
    EXPECT_EQ(ended[0].exit_code, 11) << ended[0].output;
    EXPECT_THAT(ended[0].output, HasSubstr("parallel: "));
  }
}

/// Nor does one that is gone keep others from asking each other, or from ending.
TEST(ShardExchange, GoesOnAmongThoseThatAreLeft) {
  for (const int gone : {0, 1, 2}) {
    const auto began = std::chrono::steady_clock::now();
    const std::vector<Ended> ended = outcomes_of(3, [gone](const Launched& launched) {
      const auto world = World::meet(launched, {.timeout = std::chrono::seconds(20)});
      ShardExchange exchange(*world);
      const at::Tensor mine = offered_by(launched.rank, 0), other = torch::empty({1000});
      exchange.offer(0, mine);
      exchange.meet();
      if (launched.rank == gone) ::raise(SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      const int left = 3 - gone - launched.rank;
      EXPECT_THROW(exchange.fetch(gone, 0, other).wait(), GroupFailed);
      for (int i = 0; i < 20; ++i) exchange.fetch(left, 0, other).wait();
      EXPECT_TRUE(same_bits(other, offered_by(left, 0)));
    });
    if (testing::is_started_by_test()) continue;
    for (int rank = 0; rank < 3; ++rank) {
      const Ended& one = ended[static_cast<std::size_t>(rank)];
      EXPECT_EQ(one.exit_code, rank == gone ? one.exit_code : 0) << one.output;
    }
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(15)) << "nobody waits for it";
  }
}

constexpr Bytes kSmallest = 16_KiB;

/// A model of which each process has a part of the weights, of the gradients, and of what the optimizer keeps.
struct InShards {
  explicit InShards(World& world, Bytes smallest = kSmallest, Bytes bucket = 64_KiB) {
    divided = divide(trained.parameters(), world, world.all(), smallest,
                     [&](const at::Tensor& parameter, std::unique_ptr<memory::ContentsRoom> room) {
                       streamed->add_with_room(parameter, std::move(room));
                     });
    streamed->set_cost(measured_gather_cost(world, world.all()));
    together = std::make_unique<DataParallel>(trained.parameters(), world.all(),
                                              DataParallelOptions{.combine = DataParallelOptions::Combine::Sum,
                                                                  .leaves = DataParallelOptions::Leaves::Shards,
                                                                  .divided = divided,
                                                                  .bucket = bucket});
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
    together->gather();
    streamed->forget_copies();
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

  Trained trained;
  std::shared_ptr<StreamedTensors> streamed = std::make_shared<StreamedTensors>();
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

void without_a_plan(World& world, Bytes smallest, std::size_t divided, Bytes bucket = 64_KiB) {
  const int size = world.all()->size();
  InShards mine(world, smallest, bucket);
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

/// Plans, window and gathers: the cap holds in each, and all have the same plan, though one of them is slower.
void within_a_budget_of_weights(World& world) {
  const int size = world.all()->size(), rank = world.all()->rank();
  memory::DeviceMemory& memory = testing::cpu();
  InShards mine(world);
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
    budget = all.plan().unplanned_peak * 2 / 3;
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
  for (int i = 0; i < 3; ++i) {
    memory.reset_peak();
    session.backward(step, batch_of(rank, i));
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    EXPECT_GT(session.last_step().replayed_ops, 0);
    EXPECT_EQ(session.last_step().evictions, 0);
    mine.update();
    EXPECT_LE(memory.stats().allocated_peak, budget);
    at::Tensor most = torch::full({}, memory.stats().allocated_peak, at::kLong);
    world.all()->run(AllReduce{most, Reduce::Max});
    EXPECT_EQ(most.item<std::int64_t>(), session.plan().predicted_peak);
  }
}

TEST(Divided, WeightsUnderABudgetInTwoProcesses) { in_processes(2, within_a_budget_of_weights); }
TEST(Divided, WeightsUnderABudgetInFourProcesses) { in_processes(4, within_a_budget_of_weights); }

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

}  // namespace
}  // namespace snug::parallel
