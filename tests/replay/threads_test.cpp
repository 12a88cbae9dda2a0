// Several threads record, replay and train at once, and sessions move between them.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <thread>

#include "snug/base/module_scope.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace snug {
namespace {

using testing::same_bits;
namespace nn = torch::nn;

constexpr int kThreads = 4;

/// A net with data of its own; the same for the same number.
struct Work {
  explicit Work(int number) {
    static std::mutex one_at_a_time;  // the default generator is everybody's
    const std::lock_guard lock(one_at_a_time);
    torch::manual_seed(number);
    for (int i = 0; i < 4; ++i) {
      net->push_back(nn::Linear(64, 64));
      net->push_back(nn::Tanh());
    }
    net->push_back(nn::Linear(64, 8));
    x = torch::randn({32, 64});
  }
  at::Tensor loss() { return net->forward(x).square().mean(); }
  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (const auto& p : net->parameters()) all.push_back(p.grad().clone());
    return all;
  }
  nn::Sequential net;
  at::Tensor x;
};

std::vector<at::Tensor> plain_gradients(int number) {
  Work work(number);
  work.loss().backward();
  return work.gradients();
}

bool same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) { return same_bits(x, y); });
}

void on_threads(const std::function<void(int)>& run) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(run, i);
  for (std::thread& t : threads) t.join();
}

TEST(Threads, RegionsOnEachHaveTapesOfTheirOwn) {
  std::vector<std::vector<at::Tensor>> plain;
  for (int i = 0; i < kThreads; ++i) plain.push_back(plain_gradients(i));
  std::atomic<int> equal = 0;
  std::barrier start(kThreads);
  on_threads([&](int i) {
    Work work(i);
    start.arrive_and_wait();
    for (int repeat = 0; repeat < 20; ++repeat) {
      work.net->zero_grad();
      const ModuleScope scope("worker");
      const Region region(Recompute{});
      work.loss().backward();
      equal += same(work.gradients(), plain[static_cast<std::size_t>(i)]);
    }
  });
  EXPECT_EQ(equal, kThreads * 20);
}

TEST(Threads, SessionsTrainAtTheSameTime) {
  std::vector<std::vector<at::Tensor>> plain;
  for (int i = 0; i < kThreads; ++i) plain.push_back(plain_gradients(i));
  std::atomic<int> equal = 0, replayed = 0;
  auto& memory = testing::test_memory();
  // Recording measures the device's memory: one at a time.
  std::vector<std::unique_ptr<Work>> work;
  std::vector<Session> sessions;
  for (int i = 0; i < kThreads; ++i) {
    work.push_back(std::make_unique<Work>(i));
    auto step = replay::record_step([&] { return work.back()->loss(); }, memory);
    sessions.emplace_back(std::move(step), "sequential(2)", std::nullopt, memory);
  }
  std::barrier start(kThreads);
  on_threads([&](int i) {
    Work& mine = *work[static_cast<std::size_t>(i)];
    Session& session = sessions[static_cast<std::size_t>(i)];
    start.arrive_and_wait();
    for (int repeat = 0; repeat < 20; ++repeat) {
      mine.net->zero_grad();
      session.backward([&] { return mine.loss(); });
      equal += same(mine.gradients(), plain[static_cast<std::size_t>(i)]);
      replayed += static_cast<int>(session.last_step().replayed_ops);
    }
  });
  EXPECT_EQ(equal, kThreads * 20);
  EXPECT_GE(replayed, kThreads * 20);
}

TEST(Threads, ASessionMovesFromOneToAnother) {
  const auto plain = plain_gradients(1);
  Work work(1);
  auto& memory = testing::test_memory();
  Session session(replay::record_step([&] { return work.loss(); }, memory), "optimal", std::nullopt, memory);
  for (int i = 0; i < 3; ++i) {
    std::thread([&, here = std::move(session)]() mutable {
      work.net->zero_grad();
      here.backward([&] { return work.loss(); });
      EXPECT_TRUE(here.last_step().followed_plan);
      EXPECT_TRUE(same(work.gradients(), plain));
      session = std::move(here);
    }).join();
  }
}

TEST(Threads, BackwardOfARerunOnAnotherThread) {
  const at::Tensor x = torch::randn({64}, at::requires_grad());
  const CheckpointOptions rerun{.mode = Rerun{}};
  const auto call = [](const at::Tensor& t) { return torch::dropout(t.sin().exp(), 0.5, true); };
  torch::manual_seed(3);
  const at::Tensor plain = torch::autograd::grad({call(x).sum()}, {x})[0];
  torch::manual_seed(3);
  const at::Tensor y = checkpoint(rerun, call, x).sum();
  at::Tensor other;
  std::thread([&] { other = torch::autograd::grad({y}, {x})[0]; }).join();
  EXPECT_TRUE(same_bits(plain, other));
}

TEST(Threads, NoRegionOfOneIsSeenByAnother) {
  const Region region(Recompute{});
  const at::Tensor x = torch::randn({8}, at::requires_grad());
  std::thread([&] {
    const at::Tensor y = x.sin().exp();
    y.sum().backward();
  }).join();
  EXPECT_EQ(region.replayed_ops(), 0);
}

}  // namespace
}  // namespace snug
