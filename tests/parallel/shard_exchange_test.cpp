// What processes have of tensors in shards, and fetch from each other.
#include "snug/parallel/shard_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/memory/byte_tensor.h"
#include "snug/parallel/sharded_room.h"
#include "snug/replay/streamed_tensors.h"
#include "tests/equivalence/bitwise.h"
#include "tests/memory/disk_in_memory.h"
#include "tests/parallel/processes.h"
#include "tests/parallel/shard_tiers.h"

namespace snug::parallel {
namespace {

using ::testing::AllOf;
using testing::Ended;
using ::testing::HasSubstr;
using testing::in_processes;
using ::testing::Not;
using testing::outcomes_of;
using testing::same_bits;

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

/// Of several parts and less than one; while it is asked for, its own process may write it back as it is.
TEST(ShardedRoom, MayHaveItsShardInATier) {
  in_processes(3, [](World& world) {
    for (const StreamOptions& options : testing::shard_tiers()) {
      for (const std::int64_t elements : {std::int64_t{3'500'000}, std::int64_t{5000}}) {
        const at::Tensor whole = torch::arange(elements, at::kFloat);
        const auto exchange = std::make_shared<ShardExchange>(world);
        StreamedTensors streamed(options);
        ShardedRoom room(exchange, whole, 7);
        const at::Tensor contents = memory::byte_tensor(whole.storage(), static_cast<Bytes>(whole.nbytes()));
        (void)room.write(contents);
        const Bytes before = testing::cpu().stats().allocated;
        streamed.add({room.shard()});
        EXPECT_EQ(testing::cpu().stats().allocated,
                  before - testing::cpu().rounded(static_cast<Bytes>(room.shard().nbytes())));
        streamed.open({.bytes = static_cast<Bytes>(room.shard().nbytes())});
        {
          const torch::NoGradGuard no_grad;
          room.shard().mul_(2);  // as an optimizer does
        }
        streamed.forget_copies();
        exchange->meet();
        const Bytes there = testing::cpu().stats().allocated;
        const at::Tensor read = torch::empty({room.bytes()}, at::kByte),
                         ahead = torch::empty({room.bytes()}, at::kByte);
        for (int i = 0; i < 3; ++i) {
          {
            const torch::NoGradGuard no_grad;
            room.shard().mul_(1);  // as a rehearsal does
          }
          read.zero_();
          room.read_now(read);
          room.read(ahead, {}).wait();
          for (const at::Tensor& bytes : {read, ahead})
            EXPECT_TRUE(same_bits(bytes.view(at::kFloat).narrow(0, 0, elements), whole * 2)) << elements;
        }
        EXPECT_LE(testing::cpu().stats().allocated - there, 3 * testing::cpu().rounded(room.bytes()))
            << "nobody has taken memory for answers";
        EXPECT_THROW(room.write(contents).wait(), Error) << "it could be read where it is not written";
        world.all()->run(Barrier{});
      }
    }
  });
}

/// Whose disk fails says so; who has asked does not wait for it.
TEST(ShardedRoom, WhatCannotBeReadForOthersIsToldByItsOwnProcess) {
  const auto began = std::chrono::steady_clock::now();
  const std::vector<Ended> ended = outcomes_of(2, [](const Launched& launched) {
    const auto world = World::meet(launched, {.timeout = std::chrono::seconds(20)});
    const bool fails = launched.rank == 1;
    std::atomic<bool> broken = false;
    const auto tiers = testing::tiers_on([&](testing::Access access, std::span<std::byte>) {
      if (broken && access == testing::Access::Read) testing::fail_with(EIO);
    });
    const auto exchange = std::make_shared<ShardExchange>(*world);
    StreamedTensors streamed({.min_bytes = 1_KiB}, tiers);
    const ShardedRoom room(exchange, torch::ones({5000}), 0);
    streamed.add({room.shard()});
    broken = fails;
    exchange->meet();
    const at::Tensor read = torch::empty({room.bytes()}, at::kByte);
    if (!fails) {
      EXPECT_THROW(room.read_now(read), GroupFailed);
    } else {
      std::string said;
      for (int i = 0; i < 200 && said.empty(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        try {
          (void)exchange->fetch(0, 0, torch::empty({room.shards().count(0) * 4}, at::kByte));
        } catch (const Error& error) {
          said = error.what();
        }
      }
      EXPECT_THAT(said, HasSubstr("reading"));
    }
    throw Error("over");  // nobody waits for the other's last word
  });
  if (testing::is_started_by_test()) return;
  for (const Ended& one : ended)
    EXPECT_THAT(one.output, AllOf(HasSubstr("over"), Not(HasSubstr("Failure")))) << one.output;
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(15)) << "and not by the timeout";
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
    EXPECT_THAT(ended[0].output, Not(HasSubstr("typically caused by"))) << "what the library advises";
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

}  // namespace
}  // namespace snug::parallel
