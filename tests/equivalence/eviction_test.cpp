// No plan at all, only the cap: values are dropped when memory runs out, and made again when backward asks for them.
#include <gtest/gtest.h>
#include <torch/library.h>

#include <atomic>
#include <barrier>
#include <exception>
#include <future>

#include "snug/plan/run/presets.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"
#include "tests/equivalence/nets.h"

namespace {

using snug::testing::test_memory;

constexpr std::int64_t kRows = 256, kColumns = 1024;
std::atomic<int> g_made_room_elsewhere = 0;

/// Its kernel takes scratch memory on two threads at once, as kernels inside of parallel loops may.
at::Tensor halved_by_two_threads(const at::Tensor& x) {
  at::Tensor half = at::empty_like(x);
  std::barrier both_have_it(2);
  const auto take = [&](bool counts) {
    const std::int64_t pressure = test_memory().stats().pressure_calls;
    const at::Tensor scratch = at::empty({3 * kRows, kColumns});
    if (counts && test_memory().stats().pressure_calls > pressure) ++g_made_room_elsewhere;
    return scratch;
  };
  const auto fill = [&](std::int64_t from) {
    at::Tensor scratch;
    std::exception_ptr failure;
    try {
      scratch = take(from != 0);
    } catch (...) {
      failure = std::current_exception();
    }
    both_have_it.arrive_and_wait();
    if (failure) std::rethrow_exception(failure);
    auto* const to = scratch.mutable_data_ptr<float>();
    for (std::int64_t i = from; i < from + x.numel() / 2; ++i) {
      to[i] = x.const_data_ptr<float>()[i];
      half.mutable_data_ptr<float>()[i] = to[i] / 2;
    }
  };
  auto other = std::async(std::launch::async, fill, x.numel() / 2);
  fill(0);
  other.get();
  return half;
}

TORCH_LIBRARY(snug_eviction_test, library) {
  library.def("halved(Tensor x) -> Tensor");
  library.impl("halved", c10::DispatchKey::CPU, &halved_by_two_threads);
}

at::Tensor halved(const at::Tensor& x) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("snug_eviction_test::halved", "")
                             .typed<at::Tensor(const at::Tensor&)>();
  const at::AutoDispatchBelowAutograd below;  // it has no derivative
  return op.call(x);
}

}  // namespace

namespace snug {
namespace {

using testing::expect_same;
using testing::StepUnderTest;
using testing::Task;
using testing::test_memory;

class EvictionAlone : public ::testing::TestWithParam<const char*> {
 protected:
  Task make_task() {
    torch::manual_seed(3);
    if (std::string(GetParam()) == "resnet") return testing::resnet_task(16, 8, 32, 5);
    return testing::gpt_task({.blocks = 8, .width = 128, .heads = 4, .sequence = 64, .vocabulary = 512, .dropout = 0.1},
                             8);
  }
};

TEST_P(EvictionAlone, RunsFromTheUnplannedPeakDownToTheFloor) {
  const Task task = make_task();
  StepUnderTest test({task.model});
  const auto plain = test.run_plain(task.forward);
  const auto recorded = replay::record_step(task.forward, test_memory());
  const Bytes most = plan::plan_none(recorded.graph).predicted_peak;
  const Bytes least = plan::Planner(recorded.graph, "optimal").floor(recorded.graph);
  const auto ops = static_cast<std::int64_t>(recorded.graph.ops.size());
  const plan::Planner planner(recorded.graph, "eviction");
  std::int64_t evictions_before = 0;
  for (int i = 0; i <= 10; ++i) {
    const Bytes limit = plan::Budget::for_limit(1).floor_for(most - (most - least) * i / 10);
    SCOPED_TRACE(::testing::Message() << "limit " << limit);
    test_memory().release_cached();
    Session session(recorded, planner, plan::Budget::for_limit(limit), test_memory());
    const auto evicted = test.run([&] {
      test_memory().release_cached();
      test_memory().reset_peak();
      const at::Tensor loss = session.backward(task.forward);
      EXPECT_LE(test_memory().stats().mapped_peak, limit);
      test_memory().set_limit(std::nullopt);  // for the copies of what is compared
      return loss;
    });
    expect_same(plain, evicted);
    const Session::StepReport& step = session.last_step();
    EXPECT_EQ(step.evictions == 0, i == 0);
    EXPECT_GE(step.replayed_ops, step.evictions);
    EXPECT_GE(step.evictions, evictions_before / 2);  // more where there is less room, give or take
    evictions_before = step.evictions;
    // Down to half of what the step adds each operator runs again once at most, on average.
    if (most - (most - least) * i / 10 - recorded.graph.static_bytes > (most - recorded.graph.static_bytes) / 2) {
      EXPECT_LE(step.replayed_ops, ops);
    }
    EXPECT_LE(step.replayed_ops, 8 * ops);
  }
  // Below what the step cannot do without, it is refused.
  EXPECT_THROW(Session(recorded, planner, plan::Budget::for_limit(planner.floor(recorded.graph) / 2), test_memory()),
               DoesNotFit);
}

TEST_P(EvictionAlone, GoesOnWithAnotherBudgetAfterItRanOut) {
  const Task task = make_task();
  StepUnderTest test({task.model});
  const auto plain = test.run_plain(task.forward);
  const auto recorded = replay::record_step(task.forward, test_memory());
  const Bytes before = test_memory().stats().allocated;
  test_memory().release_cached();
  Session session(recorded, "none", std::nullopt, test_memory());
  test_memory().set_limit(recorded.graph.static_bytes + 1_MiB);
  EXPECT_THROW(session.backward(task.forward), OutOfBudget);
  test_memory().set_limit(std::nullopt);
  task.model->zero_grad();
  EXPECT_EQ(test_memory().stats().allocated, before);
  expect_same(plain, test.run([&] { return session.backward(task.forward); }));
}

TEST(Eviction, MakesRoomForTheThreadsOfAKernelInForwardAndInReplay) {
  torch::nn::Linear model(kColumns, kColumns);
  const at::Tensor x = torch::randn({kRows, kColumns});
  const auto forward = [&] {
    at::Tensor h = model(x);
    for (int i = 0; i < 8; ++i) h = h.tanh() * halved(h.detach());
    return h.square().mean();
  };
  forward().backward();
  const at::Tensor expected = model->weight.grad().clone();
  model->zero_grad();
  const auto recorded = replay::record_step(forward, test_memory());
  const plan::Planner planner(recorded.graph, "eviction");
  const Bytes most = plan::plan_none(recorded.graph).predicted_peak;
  const Bytes least = planner.floor(recorded.graph);
  for (int i = 0; i <= 4; ++i) {
    const Bytes limit = plan::Budget::for_limit(1).floor_for(most - (most - least) * i / 5);
    SCOPED_TRACE(::testing::Message() << "limit " << limit << " between " << least << " and " << most);
    test_memory().release_cached();
    Session session(recorded, planner, plan::Budget::for_limit(limit), test_memory());
    for (int step = 0; step < 10; ++step) {
      model->zero_grad();
      test_memory().release_cached();
      test_memory().reset_peak();
      session.backward(forward);
      EXPECT_LE(test_memory().stats().mapped_peak, limit);
      EXPECT_TRUE(testing::same_bits(model->weight.grad(), expected));
    }
    EXPECT_EQ(session.last_step().replayed_ops > 0, i > 0);
  }
  EXPECT_GT(g_made_room_elsewhere.load(), 20);
}

TEST(Eviction, MayComeFromAPolicyThatAllocates) {
  torch::nn::Linear model(kColumns, kColumns);
  const at::Tensor x = torch::randn({kRows, kColumns});
  int asked = 0;
  const auto forward = [&] {
    const Region region(SelectivePolicy([&](const OperatorContext&) {
      ++asked;
      at::empty({2 * kRows, kColumns}).fill_(1);
      return Choice::PreferRecompute;
    }));
    at::Tensor h = model(x);
    for (int i = 0; i < 16; ++i) h = h.tanh();
    return h.square().mean();
  };
  forward().backward();
  const at::Tensor expected = model->weight.grad().clone();
  model->zero_grad();
  const auto recorded = replay::record_step(forward, test_memory());
  const Bytes most = plan::plan_none(recorded.graph).predicted_peak;
  test_memory().release_cached();
  Session session = fit([&](int) { return forward(); }, 0, {.budget = most - 6_MiB, .device = testing::test_device()});
  session.backward(forward);
  EXPECT_TRUE(testing::same_bits(model->weight.grad(), expected));
  EXPECT_GT(asked, 64);
}

INSTANTIATE_TEST_SUITE_P(Nets, EvictionAlone, ::testing::Values("gpt", "resnet"),
                         [](const auto& net) { return std::string(net.param); });

}  // namespace
}  // namespace snug
