// One process of some that have not been started: what its collectives bring, and how long they take.
#include "snug/parallel/rehearsed_world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <memory>

#include "snug/base/clock.h"
#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/parallel/mesh.h"

namespace snug::parallel {
namespace {

using ::testing::HasSubstr;

constexpr Link kFast{.bytes_per_second = 1e12, .seconds_per_message = 0};
constexpr Links kNoTime{.within = kFast, .between = kFast, .per_machine = 4};

TEST(RehearsedWorld, BringsWhatTheProcessItselfHas) {
  const Rehearsal rehearsal(8, kNoTime);
  const auto world = rehearsal.world_of(5);
  EXPECT_EQ(world->launched().local_rank, 1);
  EXPECT_EQ(world->launched().local_size, 4);
  const auto group = world->group({1, 5, 7});
  EXPECT_EQ(group->rank(), 1);
  const at::Tensor mine = torch::arange(6.0), sum = mine.clone(), all = torch::empty({18}), part = torch::empty({2}),
                   received = torch::empty({6});
  group->run(AllReduce{sum});
  EXPECT_TRUE(at::equal(sum, mine));
  group->run(AllGather{all, mine});
  EXPECT_TRUE(at::equal(all, mine.repeat({3})));
  group->run(ReduceScatter{part, mine});
  EXPECT_TRUE(at::equal(part, mine.narrow(0, 2, 2)));
  group->run(AllToAll{received, mine});
  EXPECT_TRUE(at::equal(received, mine));
  group->run(Broadcast{sum, 2});
  EXPECT_TRUE(at::equal(sum, mine));
  EXPECT_EQ(group->count_of<AllReduce>().calls, 1);
  EXPECT_THROW(group->run(AllReduce{mine.as_strided({2}, {2})}), UsageError) << "as in a real one";
  Mesh mesh(world, {{"data", 4}, {"tensor", 2}});
  EXPECT_EQ(mesh.group({"tensor"})->members(), (std::vector<int>{4, 5}));
}

TEST(RehearsedWorld, MessagesBringSmallOnesThatAnyProcessHasSentAndNumbersElse) {
  const Rehearsal rehearsal(3, kNoTime);
  const auto first = rehearsal.world_of(0), second = rehearsal.world_of(1);
  const at::Tensor header = torch::tensor({3, 1, 4}, at::kLong), large = torch::full({1 << 16}, 7.0);
  first->all()->run(Send{header, 1});
  first->all()->run(Send{large, 1});
  at::Tensor got = torch::zeros({3}, at::kLong), other = torch::ones({2}, at::kLong), some = torch::zeros({1 << 16}),
             few_bits = torch::zeros({1 << 15}, at::kBFloat16);
  second->all()->run(Receive{got, 0});
  EXPECT_TRUE(at::equal(got, header));
  second->all()->run(Receive{other, 0});
  EXPECT_EQ(other.abs().sum().item<std::int64_t>(), 0);
  for (const at::Tensor& one : {some, few_bits}) {
    second->all()->run(Receive{one, 2});
    EXPECT_NEAR(one.to(at::kFloat).std().item<double>(), 0.02, 0.001);
    EXPECT_NEAR(one.to(at::kFloat).mean().item<double>(), 0, 0.001);
  }
  EXPECT_EQ(rehearsal.largest_message(), static_cast<Bytes>(large.nbytes()));
  EXPECT_FALSE(first->all()->has_others());
  EXPECT_EQ(first->all()->number_step(), second->all()->number_step());
  EXPECT_EQ(first->all()->number_step(), second->all()->number_step()) << "however often";
}

TEST(RehearsedWorld, CollectivesAreAsLongUnderWayAsLinksSayOneBehindTheOther) {
  constexpr double kEach = 0.2;  // beside what other tests have these processors do
  const Link slow{.bytes_per_second = 1e12, .seconds_per_message = kEach};
  const Rehearsal rehearsal(2, {.within = slow, .between = kFast, .per_machine = 2});
  const auto world = rehearsal.world_of(0);
  const at::Tensor sent = torch::zeros({2}), received = torch::zeros({2});
  double began = monotonic_seconds();
  world->all()->run(AllToAll{received, sent});
  EXPECT_GE(monotonic_seconds() - began, kEach);
  began = monotonic_seconds();
  {
    ProcessGroup::Begun one = world->all()->begin(AllToAll{received, sent}),
                        two = world->all()->begin(AllToAll{received, sent});
    EXPECT_LT(monotonic_seconds() - began, kEach) << "it goes on meanwhile";
    two.wait();
    EXPECT_GE(monotonic_seconds() - began, 2 * kEach);
    const double before = monotonic_seconds();
    one.wait();
    EXPECT_LT(monotonic_seconds() - before, kEach);
  }
  EXPECT_EQ(rehearsal.seconds_of_messages(), 0);
  world->all()->run(Receive{received, 1});
  EXPECT_GE(rehearsal.seconds_of_messages(), kEach * 0.99);
}

TEST(RehearsedWorld, TakesNoMemoryOfTheBudget) {
  const Rehearsal rehearsal(2, kNoTime);
  const auto world = rehearsal.world_of(0);
  const at::Tensor small = torch::zeros({4}), large = torch::zeros({1 << 16});
  memory::DeviceMemory& memory = memory::device_memory(c10::kCPU);
  memory.reset_peak();
  const Bytes before = memory.stats().allocated;
  world->all()->run(Send{small, 1});
  world->all()->run(Receive{small, 1});
  world->all()->run(Receive{large, 1});
  world->all()->run(AllReduce{large});
  EXPECT_EQ(memory.stats().allocated, before);
  EXPECT_EQ(memory.stats().allocated_peak, before);
}

TEST(RehearsedWorld, KnowsOfOthersWhatItIsTold) {
  Rehearsal rehearsal(2, kNoTime);
  const auto agreement = rehearsal.world_of(1)->agreement();
  EXPECT_FALSE(agreement->is_unlike_others());
  rehearsal.set_others(Rehearsal::Others::Unlike);
  EXPECT_TRUE(agreement->is_unlike_others());
  EXPECT_EQ(agreement->votes(Vote::Yes), (std::vector<Vote>{Vote::Yes, Vote::Yes}));
}

TEST(RehearsedWorld, RefusesWhatThereCannotBe) {
  const auto refused = [](int processes, const Links& links, int rank, const char* why) {
    try {
      (void)Rehearsal(processes, links).world_of(rank);
      ADD_FAILURE() << why;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
  };
  refused(0, kNoTime, 0, "a rehearsal of 0 processes");
  refused(2, {.within = kFast, .between = kFast, .per_machine = 0}, 0, "0 on each machine");
  refused(2, {.within = {}, .between = kFast, .per_machine = 2}, 0, "a link of 0 bytes a second");
  refused(2, kNoTime, 2, "a rehearsal of 2 processes has none of rank 2");
}

}  // namespace
}  // namespace snug::parallel
