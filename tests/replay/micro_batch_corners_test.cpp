// Micro-batches of steps that people write: with others beside them, that fail, that are summed up, that are updated
// behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "snug/plan/run/presets.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"
#include "tests/replay/layers_net.h"
#include "tests/replay/schedule.h"

namespace snug {
namespace {

using testing::expect_same;
using testing::fit_schedule;
using ::testing::HasSubstr;
using testing::holds;
using testing::Net;
using testing::random_batches;
using testing::Schedule;
using testing::test_memory;
using testing::unplanned_peak_of;

/// Of one session, by turns: each is known, and follows its plan.
TEST(MicroBatches, MayBeOfSomeStepsAndNotOfOthers) {
  Net net;
  const Schedule schedule{net, 2, random_batches(4)};
  const at::Tensor x = torch::randn({1024, 256});
  const auto plain = [&] { return net(x); };
  const auto outcome = [&](const auto& run) {
    run();
    std::vector<at::Tensor> gradients = net.gradients();
    net.layers->zero_grad();
    return gradients;
  };
  const auto of_plain = outcome([&] { plain().backward(); }), of_schedule = outcome([&] { schedule(); });
  const Bytes budget = unplanned_peak_of(schedule) * 7 / 10;
  for (const bool plain_first : {true, false}) {
    Session session = plain_first
                          ? fit([&](int) { return plain(); }, 0, {.budget = budget, .device = test_memory().device()})
                          : fit_schedule(schedule, budget);
    test_memory().reset_peak();
    for (int round = 0; round < 4; ++round) {
      expect_same(of_plain, outcome([&] { session.backward(plain); }));
      EXPECT_TRUE(round < 2 || session.last_step().followed_plan) << session.last_step().divergence;
      expect_same(of_schedule, outcome([&] { session.backward(schedule); }));
      EXPECT_TRUE(round < 2 || session.last_step().followed_plan) << session.last_step().divergence;
    }
    EXPECT_EQ(session.last_step().known, 2U);
    EXPECT_LE(test_memory().stats().mapped_peak, budget);
  }
}

TEST(MicroBatches, GoBackwardFromALossThatIsReturned) {
  Net net;
  const std::vector<at::Tensor> batches = random_batches(2);
  const auto plain = [&] { return net(batches[0]) + net(batches[1]); };
  plain().backward();
  const auto expected = net.gradients();
  net.layers->zero_grad();
  // Of one, of which nobody goes backward before, or of the last of them.
  const auto last = [&](int) {
    at::Tensor loss;
    for (const at::Tensor& x : batches) {
      if (loss.defined()) loss.backward();
      const MicroBatch here;
      loss = net(x);
    }
    return loss;
  };
  const Bytes budget = test_memory().stats().allocated + 64_MiB;
  Session session = fit(last, 0, {.budget = budget, .device = test_memory().device()});
  EXPECT_EQ(session.graph().in_flight, 1);
  session.backward(last, 0);
  EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(torch::allclose(expected[i], net.gradients()[i], 1e-4, 1e-6));
}

/// A backward pass through several of them at once.
TEST(MicroBatches, AreInFlightUntilABackwardPassGoesThroughThem) {
  Net net;
  const std::vector<at::Tensor> batches = random_batches(6);
  const auto step = [&] {
    at::Tensor sum;
    for (std::size_t i = 0; i < batches.size(); i += 3) {
      std::vector<at::Tensor> losses;
      for (std::size_t k = 0; k < 3; ++k) {
        const MicroBatch here;
        losses.push_back(net(batches[i + k]));
      }
      at::stack(losses).sum().backward();
    }
    return at::Tensor();
  };
  (void)step();
  const auto expected = net.gradients();
  net.layers->zero_grad();
  const replay::RecordedStep recorded = replay::record_step(step, test_memory());
  EXPECT_EQ(recorded.graph.in_flight, 3);
  const auto budget = plan::plan_none(recorded.graph).predicted_peak * 8 / 10;
  // Recorded under the limit.
  Session session = fit([&](int) { return step(); }, 0, {.budget = budget, .device = test_memory().device()});
  EXPECT_EQ(session.graph().in_flight, 3);
  EXPECT_LE(session.graph().static_bytes, recorded.graph.static_bytes + 1_KiB);
  EXPECT_LE(plan::plan_none(session.graph()).predicted_peak, plan::plan_none(recorded.graph).predicted_peak * 11 / 10);
  test_memory().reset_peak();
  session.backward(step);
  EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
  EXPECT_LE(test_memory().stats().mapped_peak, budget);
  expect_same(expected, net.gradients());
}

/// Whose gradients nobody knows any more behind it.
TEST(MicroBatches, AreFollowedByAnUpdateThatLetsGoOfTheGradients) {
  Net net;
  torch::optim::SGD optimizer(net.layers->parameters(), torch::optim::SGDOptions(1e-3));
  const Schedule schedule{net, 2, random_batches(4)};
  const auto static_bytes = [&](const replay::Rehearsal& update) {
    return replay::record_step(schedule, test_memory(), {.update = update}).graph.static_bytes;
  };
  EXPECT_EQ(static_bytes({[&] {
              optimizer.step();
              optimizer.zero_grad();
            }}),
            static_bytes({[&] { optimizer.step(); }}));
}

TEST(MicroBatches, OneAloneMakesItsGradients) {
  Net net;
  const Schedule schedule{net, 1, random_batches(1)};
  const auto expected = [&] {
    (void)schedule();
    auto gradients = net.gradients();
    net.layers->zero_grad();
    return gradients;
  }();
  holds(schedule, expected, unplanned_peak_of(schedule) * 8 / 10);
}

TEST(MicroBatches, ThatFailAreNone) {
  Net net;
  const Schedule schedule{net, 2, random_batches(4)};
  (void)schedule();
  const auto expected = net.gradients();
  net.layers->zero_grad();
  const Bytes budget = unplanned_peak_of(schedule) * 8 / 10;
  Session session = fit_schedule(schedule, budget);
  const auto fails_once = [&] {
    try {
      const MicroBatch here;
      (void)net(schedule.batches[0]);
      throw std::runtime_error("not this one");
    } catch (const std::runtime_error&) {
    }
    return schedule();
  };
  for (int step = 0; step < 2; ++step) {
    session.backward(fails_once);
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    EXPECT_EQ(session.last_step().evictions, 0);
    expect_same(expected, net.gradients());
    net.layers->zero_grad();
  }
}

TEST(MicroBatches, AreNotRecordedWithAnOptimizerInsideWhereNobodyKnowsWhichWasTheLast) {
  Net net;
  torch::optim::SGD optimizer(net.layers->parameters(), torch::optim::SGDOptions(1e-3));
  const Schedule schedule{net, 1, random_batches(2)};
  const auto step = [&](int) {
    (void)schedule();
    optimizer.step();
    return at::Tensor();
  };
  const Bytes much = test_memory().stats().allocated + 256_MiB;
  EXPECT_THROW((void)fit(step, 0, {.budget = much, .device = test_memory().device()}), UsageError);
}

TEST(MicroBatches, GoBackwardOnceEach) {
  Net net;
  const at::Tensor x = torch::randn({64, 256});
  const auto twice = [&](int) {
    const MicroBatch here;
    const at::Tensor loss = net(x);
    loss.backward({}, true);
    loss.backward();
    return loss.detach();
  };
  const auto said = [&](const auto& does) -> std::string {
    try {
      does();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "nothing";
  };
  const Bytes much = test_memory().stats().allocated + 256_MiB;
  EXPECT_THAT(said([&] { (void)fit(twice, 0, {.budget = much, .device = test_memory().device()}); }),
              HasSubstr("a second time"));
  const auto unmarked = [&](int) {
    const at::Tensor first = net(x), second = net(x);
    first.backward();
    second.backward();
    return at::Tensor();
  };
  Session session = fit(unmarked, 0, {.budget = much, .device = test_memory().device()});
  EXPECT_THAT(said([&] { session.backward(unmarked, 0); }), HasSubstr("(MicroBatch; in Python"));
  if (!test_memory().device().is_cpu())
    return;  // whose backward passes run on a thread of autograd's, which runs no step
  const auto inside = [&](int) {
    at::Tensor loss = net(x);
    loss.register_hook([](const at::Tensor&) { const MicroBatch here; });
    return loss;
  };
  EXPECT_THAT(said([&] { session.backward(inside, 0); }), HasSubstr("inside of a backward pass"));
}

}  // namespace
}  // namespace snug
