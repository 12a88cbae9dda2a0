// Plans that move what autograd saves to a disk while the step goes on: with the same bits and the planned bytes, and
// whatever the disk does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "snug/memory/held_limit.h"
#include "snug/plan/run/explanation.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/run/staging.h"
#include "snug/plan/step/legal_actions.h"
#include "snug/replay/moves.h"
#include "snug/snug.h"
#include "tests/memory/disk_in_memory.h"
#include "tests/replay/layers_net.h"

namespace snug {
namespace {

using testing::Access;
using testing::DiskInMemory;
using testing::expect_same;
using testing::fail_with;
using testing::Net;
using testing::test_memory;
using testing::tiers_on;

constexpr Bytes kRow = 256 * 4;
constexpr int kResults = 16;  // that are saved

/// A step that moves all that it may, with memory for so many results on their way each way.
struct OnDisk {
  explicit OnDisk(std::int64_t rows, int on_their_way)
      : x(torch::randn({rows, 256})),
        expected(net.plain(x)),
        step(replay::record_step([this] { return net(x); }, test_memory())) {
    step.graph.moves.disk =
        plan::MoveCost{.out_seconds_per_byte = 1e-12, .in_seconds_per_byte = 1e-12, .overlaps = true, .budget = {}};
    plan = plan::plan_none(step.graph);
    for (plan::ValueId v = 0; v < step.graph.flow.values(); ++v) {
      if (plan::may_move(step.graph, v)) plan.actions[plan::at(v)] = plan::kMoveToDisk;
    }
    const Bytes memory = on_their_way * rows * kRow;
    plan = plan::predicted(step.graph, plan::staged(step.graph, std::move(plan), memory, memory));
  }
  [[nodiscard]] Session session(std::shared_ptr<memory::Tiers> tiers, std::optional<plan::Budget> budget = {}) const {
    Session made(step, plan::Planner(step.graph, plan), budget, test_memory());
    made.use(std::move(tiers));
    return made;
  }

  Net net;
  at::Tensor x;
  std::vector<at::Tensor> expected;
  replay::RecordedStep step;
  plan::MemoryPlan plan;
};

TEST(Disk, PlansKeepTheirBytesWhateverIsOnItsWay) {
  for (const int on_their_way : {0, 1, 3}) {
    SCOPED_TRACE(on_their_way);
    OnDisk disk(1024, on_their_way);
    EXPECT_LT(disk.plan.predicted_peak, plan::plan_none(disk.step.graph).predicted_peak * 7 / 10);
    Session session = disk.session(std::make_shared<memory::Tiers>());
    Bytes held = 0;
    for (int i = 0; i < 20; ++i) {
      test_memory().reset_peak();
      session.backward(disk.net, disk.x);
      expect_same(disk.expected, disk.net.gradients());
      disk.net.layers->zero_grad();
      EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
      EXPECT_EQ(session.last_step().moved_bytes, kResults * 1024 * kRow);
      EXPECT_EQ(session.last_step().replayed_ops, 0);
      EXPECT_EQ(session.last_step().evictions, 0);
      EXPECT_EQ(test_memory().stats().allocated_peak, disk.plan.predicted_peak);
      const memory::TierStats there = session.tiers().stats(memory::Tier::Disk);
      EXPECT_EQ(there.taken, 0) << "nothing stays there";
      EXPECT_LE(there.taken_peak, plan::simulate(disk.step.graph, disk.plan).disk_peak);
      EXPECT_TRUE(held == 0 || there.held == held) << "each step uses the room of the first again";
      held = there.held;
    }
  }
}

/// Of the process: what a pool takes and does not count is in it too.
Bytes resident_bytes() {
  std::ifstream status("/proc/self/statm");
  Bytes all = 0, resident = 0;
  status >> all >> resident;
  return resident * 4_KiB;
}

TEST(Disk, AndTheHostTakeNothingMoreInAThousandSteps) {
  OnDisk disk(64, 2);
  int to_host = 0;
  for (plan::Action& action : disk.plan.actions) {
    if (plan::is_moved(action) && ++to_host % 2 == 0) action = plan::kMove;
  }
  ASSERT_GT(to_host, 10);
  Session session = disk.session(std::make_shared<memory::Tiers>(memory::TierBudgets{.host = 1_GiB, .disk = 1_GiB}));
  struct Held {
    Bytes host, disk, mapped, resident;
  };
  const auto run = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      session.backward(disk.net, disk.x);
      disk.net.layers->zero_grad();
    }
    return Held{session.tiers().stats(memory::Tier::Host).held, session.tiers().stats(memory::Tier::Disk).held,
                test_memory().stats().mapped_peak, resident_bytes()};
  };
  const Held early = run(20), late = run(1000);
  EXPECT_GT(early.host, 0);
  EXPECT_GT(early.disk, 0);
  EXPECT_EQ(late.host, early.host);
  EXPECT_EQ(late.disk, early.disk);
  EXPECT_EQ(late.mapped, early.mapped);
#if !defined(__SANITIZE_ADDRESS__)  // which keeps what was freed, and the stacks of those who took it
  EXPECT_LT(late.resident - early.resident, 2_MiB);
#endif
}

/// Each access in turn fails for good, or a few times, or has other bits, or there is no room.
TEST(Disk, ThatFailsIsMetByKeepingOrMakingAgain) {
  int points = 0, kept = 0, made_again = 0, went_on = 0;
  for (const int on_their_way : {0, 2}) {
    OnDisk disk(256, on_their_way);
    const plan::Budget budget{disk.plan.predicted_peak + 3 * 256 * kRow, 0};
    for (int at_point = 0; at_point < 5 * 2 * kResults; ++at_point) {
      const int kind = at_point % 5, point = at_point / 5;
      SCOPED_TRACE(::testing::Message() << on_their_way << ", kind " << kind << " at access " << point);
      std::atomic<int> at = 0;
      const auto tiers = tiers_on([&](Access access, std::span<std::byte> contents) {
        const int now = at++;
        if (kind == 0 && now >= point && now < point + 3) fail_with(EIO);  // this one, each time
        if (kind == 1 && now == point) fail_with(EIO);
        if (kind == 2 && now >= point) fail_with(EIO);
        if (kind == 3 && access == Access::Write && now >= point) fail_with(ENOSPC);
        if (kind == 4 && now >= point && !contents.empty()) contents.front() ^= std::byte{1};
      });
      {
        Session session = disk.session(tiers, budget);
        test_memory().reset_peak();
        session.backward(disk.net, disk.x);
        EXPECT_LE(test_memory().stats().mapped_peak, budget.limit);
        EXPECT_TRUE(session.last_step().followed_plan);
        made_again += session.last_step().replayed_ops > 0;
        const bool all_moved = session.last_step().moved_bytes == kResults * 256 * kRow;
        kept += !all_moved;
        went_on += session.last_step().replayed_ops == 0 && all_moved;
        EXPECT_EQ(session.tiers().stats(memory::Tier::Disk).taken, 0);
      }
      expect_same(disk.expected, disk.net.gradients());
      disk.net.layers->zero_grad();
      ++points;
    }
  }
  EXPECT_GE(points, 300);
  EXPECT_GT(made_again, 80);
  EXPECT_GT(kept, 80);
  EXPECT_GE(went_on, 64) << "what fails once does not fail";
}

/// A chain in which each result is made of one that cannot be read either.
TEST(Disk, ThatLosesAllOfALongChainIsMetByMakingItAgain) {
  constexpr int kOps = 130;
  const at::Tensor w = torch::randn({64, 64}, at::requires_grad());
  const auto forward = [&] {
    at::Tensor h = w;
    for (int i = 0; i < kOps; ++i) h = h.sin();
    return h.sum();
  };
  forward().backward();
  const at::Tensor expected = w.grad().clone();
  w.mutable_grad().reset();
  replay::RecordedStep step = replay::record_step(forward, test_memory());
  step.graph.moves.disk =
      plan::MoveCost{.out_seconds_per_byte = 1e-12, .in_seconds_per_byte = 1e-12, .overlaps = true, .budget = {}};
  const plan::MemoryPlan plan = plan::make_plan(step.graph, "offload(1)", std::nullopt);
  Session session(step, plan::Planner(step.graph, plan), std::nullopt, test_memory());
  session.use(tiers_on([](Access access, std::span<std::byte>) {
    if (access == Access::Read) fail_with(EIO);
  }));
  session.backward(forward);
  EXPECT_GE(session.last_step().replayed_ops, kOps - 2);
  EXPECT_TRUE(testing::same_bits(expected, w.grad()));
}

/// Contents that were fetched and evicted come a second time, and are compared with what they were the first. Reads
/// take so long that evictions meet contents that are still arriving.
TEST(Disk, IsVerifiedOnceItIsThere) {
  OnDisk disk(1024, 6);
  Session session = disk.session(tiers_on([](Access access, std::span<std::byte>) {
    if (access == Access::Read) std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }));
  session.verify_replays(VerifyReplay::Hashes);
  const Bytes before = test_memory().stats().allocated;
  std::int64_t evictions = 0;
  for (int i = 0; i < 10; ++i) {
    {
      const memory::HeldLimit held(test_memory(), before + (disk.plan.predicted_peak - before) * 8 / 10);
      test_memory().release_cached();
      session.backward(disk.net, disk.x);
      evictions += session.last_step().evictions;
    }
    expect_same(disk.expected, disk.net.gradients());
    disk.net.layers->zero_grad();
  }
  EXPECT_GT(evictions, 0);
}

TEST(Disk, IsMeasuredAndOffWithoutABudgetForIt) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  const auto expected = net.plain(x);
  const Bytes budget = testing::unplanned_peak(net, x) * 7 / 10;
  EXPECT_FALSE(fit(net, x, {.budget = budget}).graph().moves.any());
  EXPECT_THROW(fit(net, x, {.budget = budget, .disk_budget = 0}), UsageError);
  Session session = fit(net, x, {.budget = budget, .disk_budget = 64_MiB});
  const auto& cost = session.graph().moves.disk;
  ASSERT_TRUE(cost);
  EXPECT_EQ(cost->budget, 64_MiB);
  EXPECT_TRUE(cost->overlaps);
  for (const double seconds : {cost->out_seconds_per_byte, cost->in_seconds_per_byte}) {  // 1 MB/s to 1 TB/s
    EXPECT_GT(seconds, 1e-12);
    EXPECT_LT(seconds, 1e-6);
  }
  EXPECT_LT(cost->own_out_seconds_per_byte, cost->out_seconds_per_byte * 2);
  net.layers->zero_grad();
  session.backward(net, x);
  EXPECT_GT(session.last_step().moved_bytes + session.last_step().replayed_ops, 0);
  expect_same(expected, net.gradients());
}

TEST(Disk, WithoutAFolderIsRefused) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  const Bytes budget = testing::unplanned_peak(net, x) * 7 / 10;
  ::setenv("TMPDIR", "/no/such/folder", 1);
  EXPECT_THAT([&] { fit(net, x, {.budget = budget, .disk_budget = 64_MiB}); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("/no/such/folder")));
  ::unsetenv("TMPDIR");
}

}  // namespace
}  // namespace snug
