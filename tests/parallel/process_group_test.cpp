#include "snug/parallel/process_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <csignal>
#include <exception>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "snug/memory/out_of_budget.h"
#include "snug/parallel/group_agreement.h"
#include "tests/parallel/processes.h"

namespace snug::parallel {
namespace {

using testing::Ended;
using ::testing::HasSubstr;
using testing::in_processes;
using testing::outcomes_of;

at::Tensor of(std::initializer_list<float> values) { return torch::tensor(std::vector<float>(values)); }
bool same(const at::Tensor& a, const at::Tensor& b) { return at::equal(a, b); }

void every_collective(ProcessGroup& group) {
  const auto rank = static_cast<float>(group.rank()), size = static_cast<float>(group.size());
  const auto n = static_cast<std::int64_t>(group.size());
  const at::Tensor sum = torch::full({3}, rank + 1);
  group.run(AllReduce{sum});
  EXPECT_TRUE(same(sum, torch::full({3}, size * (size + 1) / 2)));
  const at::Tensor most = torch::full({3}, rank), least = torch::full({3}, rank);
  group.run(AllReduce{most, Reduce::Max});
  group.run(AllReduce{least, Reduce::Min});
  EXPECT_TRUE(same(most, torch::full({3}, size - 1)) && same(least, torch::zeros({3})));

  const at::Tensor all = torch::empty({n, 2}), mine = torch::full({2}, rank);
  group.run(AllGather{all, mine});
  EXPECT_TRUE(same(all, torch::arange(n, torch::kFloat).unsqueeze(1).expand({n, 2})));

  const at::Tensor part = torch::empty({2});
  group.run(ReduceScatter{part, torch::arange(2 * n, torch::kFloat)});
  EXPECT_TRUE(same(part, size * of({2 * rank, 2 * rank + 1})));

  const at::Tensor received = torch::empty({n});
  group.run(AllToAll{received, torch::full({n}, rank)});
  EXPECT_TRUE(same(received, torch::arange(n, torch::kFloat)));

  for (int root = 0; root < group.size(); ++root) {
    const at::Tensor told = torch::full({4}, rank);
    group.run(Broadcast{told, root});
    EXPECT_TRUE(same(told, torch::full({4}, static_cast<float>(root))));
  }
  group.run(Barrier{});
  const int next = (group.rank() + 1) % group.size(), before = (group.rank() + group.size() - 1) % group.size();
  if (group.size() > 1) {
    const at::Tensor to = torch::full({2}, rank), from = torch::empty({2});
    auto sent = group.begin(Send{to, next});
    group.run(Receive{from, before});
    sent.wait();
    EXPECT_TRUE(same(from, torch::full({2}, static_cast<float>(before))));
  }
  EXPECT_EQ(group.count_of<AllReduce>().calls, 3);
  EXPECT_EQ(group.count_of<AllReduce>().bytes, 36);
  EXPECT_EQ(group.count_of<ReduceScatter>().bytes, 8 * n);
  EXPECT_EQ(group.count_of<Broadcast>().calls, n);
}

TEST(ProcessGroup, OfOneDoesEveryCollective) { every_collective(*group_of_one()); }

/// This process and those beside it: all on the same one.
void on_one_core() {
  cpu_set_t all;
  CPU_ZERO(&all);
  ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &all)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    return;
  }
}

// Some have met the others and go while some are still at it.
TEST(World, GroupsMayGoAsSoonAsTheyAreMade) {
  in_processes(6, [](World& world) {
    std::vector<int> ranks(6);
    std::iota(ranks.begin(), ranks.end(), 0);
    on_one_core();
    const std::jthread slows_others_down([](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
      }
    });
    for (int i = 0; i < 10; ++i) (void)world.group(ranks);
  });
}

TEST(ProcessGroup, OfThreeDoesEveryCollective) {
  in_processes(3, [](World& world) { every_collective(*world.all()); });
}

TEST(ProcessGroup, OfSomeProcessesIsApartFromOthers) {
  in_processes(4, [](World& world) {
    const int rank = world.all()->rank();
    const auto pair = world.group(rank % 2 == 0 ? std::vector{0, 2} : std::vector{1, 3});
    const auto cross = world.group(rank < 2 ? std::vector{1, 0} : std::vector{3, 2});
    EXPECT_EQ(pair->rank(), rank / 2);
    EXPECT_EQ(cross->rank(), 1 - rank % 2) << "their place in the list";
    const at::Tensor sum = torch::full({1}, static_cast<float>(rank)), other = sum.clone();
    pair->run(AllReduce{sum});
    cross->run(AllReduce{other});
    EXPECT_EQ(sum.item<float>(), rank % 2 == 0 ? 2 : 4);
    EXPECT_EQ(other.item<float>(), rank < 2 ? 1 : 5);
    EXPECT_EQ(world.group({rank})->size(), 1);
    EXPECT_THROW((void)world.group({rank, 4}), UsageError);
    EXPECT_THROW((void)world.group({rank, rank}), UsageError);
    EXPECT_THROW((void)world.group({(rank + 1) % 4}), UsageError) << "this one is not among them";
  });
}

TEST(ProcessGroup, ReducesEveryTypeThatGradientsHave) {
  in_processes(2, [](World& world) {
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kByte}) {
      const at::Tensor ones = torch::ones({5}, type);
      world.all()->run(AllReduce{ones});
      EXPECT_TRUE(same(ones, torch::full({5}, 2, type))) << c10::toString(type);
    }
  });
}

TEST(ProcessGroup, RefusesWhatDoesNotFit) {
  const auto group = group_of_one();
  const at::Tensor two = torch::ones({2}), three = torch::ones({3});
  EXPECT_THROW(group->run(AllGather{three, two}), UsageError);
  EXPECT_THROW(group->run(AllGather{two.to(at::kDouble), two}), UsageError);
  EXPECT_THROW(group->run(AllReduce{torch::ones({2, 3}).t()}), UsageError);
  EXPECT_THROW(group->run(Broadcast{two, 1}), UsageError);
  EXPECT_THROW(group->run(Send{two, 0}), UsageError);
  EXPECT_THROW(check(AllToAll{three, three}, 2), UsageError);
  group->run(AllReduce{two});  // it goes on
}

/// Where its own copies have no room. The others find it gone.
TEST(ProcessGroup, SaysItselfThatItHasNoMemoryLeft) {
  const auto group = group_of_one();
  OutOfBudget::Details details;
  details.requested = 8;
  group->watch([&](const Collective&) { memory::refuse(details); });
  const at::Tensor two = torch::ones({2});
  try {
    group->run(AllReduce{two});
    FAIL() << "it was refused";
  } catch (const std::exception&) {
    const auto refusal = memory::refusal_in(std::current_exception());
    ASSERT_TRUE(refusal);
    EXPECT_EQ(refusal->requested, 8);
  }
  EXPECT_THROW(group->run(AllReduce{two}), GroupFailed) << "it has ended";
}

TEST(ProcessGroup, IsOfNoUseAfterAFailure) {
  const auto group = group_of_one();
  bool fails = true;
  group->watch([&](const Collective& what) {
    if (fails && std::holds_alternative<Broadcast>(what)) throw std::runtime_error("a cable");
  });
  const at::Tensor two = torch::ones({2});
  group->run(AllReduce{two});
  try {
    group->run(Broadcast{two});
    FAIL() << "it was watched";
  } catch (const GroupFailed& error) {
    EXPECT_THAT(error.what(), HasSubstr("broadcast of 8 B among 1 processes, of which this is rank 0"));
    EXPECT_THAT(error.what(), HasSubstr("a cable"));
  }
  fails = false;
  EXPECT_THROW(group->run(AllReduce{two}), GroupFailed);
  EXPECT_EQ(group->count_of<AllReduce>().calls, 1);
}

/// The second of three ends, and the others, in what they do, say that it alone has.
void ends_where_one_is_killed(const std::function<Collective(int rank, const at::Tensor&)>& what) {
  const auto ended = outcomes_of(3, [&](const Launched& launched) {
    const auto world = World::meet(launched, {.timeout = std::chrono::seconds(20)});
    const at::Tensor ones = torch::ones({1000});
    world->all()->run(AllReduce{ones});
    world->doing("in step 7");
    if (launched.rank == 1) ::raise(SIGKILL);
    world->all()->run(what(launched.rank, ones));
  });
  EXPECT_EQ(ended[1].signal, SIGKILL);
  for (const int rank : {0, 2}) {
    const Ended& one = ended[static_cast<std::size_t>(rank)];
    EXPECT_EQ(one.exit_code, 11) << one.output;
    EXPECT_THAT(one.output, HasSubstr(std::string(name_of(what(rank, {}))) + " of 3.9 KiB among 3 processes"));
    EXPECT_THAT(one.output, HasSubstr("the process of rank 1 (in step 7) has ended, hangs or cannot be reached"));
  }
}

TEST(ProcessGroup, EndsInAllWhereOneIsKilled) {
  ends_where_one_is_killed([](int /*rank*/, const at::Tensor& tensor) { return AllReduce{tensor}; });
}

/// The last waits for the first, which is alive, and waits for the one that is gone: it would notice only when the
/// first has waited for it, and would be taken for missing, too.
TEST(ProcessGroup, EndsAtOnceForWhoWaitsForOneThatWaits) {
  ends_where_one_is_killed([](int rank, const at::Tensor& tensor) { return Receive{tensor, rank == 0 ? 1 : 0, 5}; });
}

/// Of two groups of the same processes one is ended, and the other goes on.
TEST(ProcessGroup, EndsAtOnceWhereOneSaysSo) {
  in_processes(3, [](World& world) {
    const auto group = world.group({0, 1, 2});
    group->run(Barrier{});
    const at::Tensor ones = torch::ones({1000});
    const auto began = std::chrono::steady_clock::now();
    if (group->rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the others wait
      group->end();
    }
    EXPECT_THROW(group->run(AllReduce{ones}), GroupFailed);
    EXPECT_THROW(group->run(Barrier{}), GroupFailed) << "for good";
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
    const at::Tensor all = torch::ones({1});
    world.all()->run(AllReduce{all});
    EXPECT_EQ(all.item<float>(), 3);
  });
}

TEST(ProcessGroup, EndsInTimeWhereOneHangs) {
  const auto began = std::chrono::steady_clock::now();
  const auto body = [](const Launched& launched) {
    const auto world = World::meet(launched, {.timeout = std::chrono::seconds(2)});
    const at::Tensor ones = torch::ones({1000}), all = torch::empty({2, 1000});
    world->all()->run(AllReduce{ones});
    if (launched.rank == 1) ::raise(SIGSTOP);
    const auto under_way = world->all()->begin(AllGather{all, ones});
    world->all()->run(AllReduce{ones});
  };
  const auto end_it = [](const std::vector<int>& ids) {
    if (::kill(ids[0], 0) != 0) ::kill(ids[1], SIGKILL);
  };
  const auto ended = outcomes_of(2, body, 40, end_it);
  EXPECT_EQ(ended[0].exit_code, 11) << ended[0].output;
  EXPECT_THAT(ended[0].output, HasSubstr("among 2 processes, of which this is rank 0"));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(12));
}

TEST(World, MeetsAgain) {
  const auto ended = outcomes_of(2, [](const Launched& launched) {
    const auto first = World::meet(launched);  // which holds the place
    Launched later = launched;
    later.host_waits = true;
    for (int i = 0; i < 2; ++i) {
      const auto world = World::meet(later);
      const at::Tensor one = torch::ones({1});
      world->all()->run(AllReduce{one});
      EXPECT_EQ(one.item<float>(), 2);
    }
    first->all()->run(Barrier{});
  });
  for (const testing::Ended& one : ended) EXPECT_EQ(one.exit_code, 0) << one.output;
}

/// What another one's end may send to this one ends nothing; who handles it goes on to do so.
TEST(World, OutlivesBrokenConnections) {
  for (const bool is_handled : {false, true}) {
    for (const Ended& one : outcomes_of(2, [=](const Launched& launched) {
           static int seen = 0;
           if (is_handled) std::signal(SIGPIPE, [](int) { ++seen; });
           const auto world = World::meet(launched, {.timeout = std::chrono::seconds(20)});
           std::raise(SIGPIPE);
           EXPECT_EQ(seen, is_handled ? 1 : 0);
           world->all()->run(Barrier{});
         }))
      EXPECT_TRUE(one.exit_code == 0 && one.signal == 0) << one.signal << one.output;
  }
}

TEST(World, RaisesTheLimitOfOpenFilesOrSaysSo) {
  const auto meet_within = [](rlim_t soft, rlim_t hard) {
    return outcomes_of(2, [=](const Launched& launched) {
      const rlimit limit{.rlim_cur = soft, .rlim_max = hard};
      EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
      World::meet(launched, {.timeout = std::chrono::seconds(20)})->all()->run(Barrier{});
    });
  };
  for (const Ended& one : meet_within(24, 512)) EXPECT_EQ(one.exit_code, 0) << one.output;
  for (const Ended& one : meet_within(40, 40)) {
    EXPECT_NE(one.exit_code, 0);
    EXPECT_THAT(one.output, HasSubstr("and this process may have 40; raise that with `ulimit -n"));
  }
}

TEST(World, SaysWhereTheyWereToMeet) {
  const auto ended = outcomes_of(2, [](const Launched& launched) {
    if (launched.rank == 1) return;
    (void)World::meet(launched, {.timeout = std::chrono::seconds(2)});
  });
  EXPECT_EQ(ended[0].exit_code, 11) << ended[0].output;
  EXPECT_THAT(ended[0].output, HasSubstr("rank 0 of 2 processes has not met the others at 127.0.0.1"));
}

TEST(GroupAgreement, GathersWhatAllSay) {
  in_processes(3, [](World& world) {
    const auto agreement = agreement_of(world.all());
    const int rank = world.all()->rank();
    EXPECT_EQ(agreement->votes(rank == 1 ? Vote::No : Vote::Yes), (std::vector{Vote::Yes, Vote::No, Vote::Yes}));
    EXPECT_EQ(agreement->votes(rank == 2 ? Vote::Failed : Vote::No), (std::vector{Vote::No, Vote::No, Vote::Failed}));
  });
}

}  // namespace
}  // namespace snug::parallel
