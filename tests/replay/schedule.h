#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "snug/plan/run/presets.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"
#include "tests/replay/layers_net.h"

namespace snug::testing {

/// Forward passes run ahead of backward passes, as those of a stage of a pipeline.
struct Schedule {
  Net& net;
  std::size_t in_flight = 1;
  std::vector<at::Tensor> batches;
  bool dropout = false;

  at::Tensor loss_of(const at::Tensor& x) const {
    return dropout ? torch::dropout(net.layers->forward(x), 0.2, true).pow(2).mean() : net(x);
  }
  at::Tensor operator()() const {
    std::deque<at::Tensor> alive;
    at::Tensor sum;
    const auto go_backward = [&] {
      alive.front().backward();
      sum = sum.defined() ? sum + alive.front().detach() : alive.front().detach();
      alive.pop_front();
    };
    for (const at::Tensor& x : batches) {
      {
        const MicroBatch here;
        alive.push_back(loss_of(x));
      }
      if (alive.size() == in_flight) go_backward();
    }
    while (!alive.empty()) go_backward();
    return sum;
  }
};

inline std::vector<at::Tensor> random_batches(std::size_t count, std::int64_t rows = 1024) {
  std::vector<at::Tensor> batches;
  for (std::size_t i = 0; i < count; ++i) batches.push_back(torch::randn({rows, 256}));
  return batches;
}

inline Session fit_schedule(const Schedule& schedule, Bytes budget, std::int64_t micro_batches = 1) {
  const auto step = [&schedule](int) { return schedule(); };
  return fit(step, 0, {.budget = budget, .device = test_memory().device(), .micro_batches = micro_batches});
}

inline Bytes unplanned_peak_of(const Schedule& schedule) {
  return plan::plan_none(replay::record_step(schedule, test_memory()).graph).predicted_peak;
}

/// Of parameters, as the allocator rounds them.
inline Bytes taken_by(const std::vector<at::Tensor>& tensors) {
  Bytes bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += test_memory().rounded(static_cast<Bytes>(tensor.nbytes()));
  return bytes;
}

/// Steps under the budget, to the byte and to the bit. Returns the operators that the last one has replayed.
inline std::int64_t holds(const Schedule& schedule, const std::vector<at::Tensor>& expected, Bytes budget) {
  Session session = fit_schedule(schedule, budget);
  EXPECT_EQ(session.graph().in_flight, static_cast<int>(schedule.in_flight));
  for (int step = 0; step < 2; ++step) {
    torch::manual_seed(3);
    test_memory().reset_peak();
    session.backward(schedule);
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    EXPECT_FALSE(session.last_step().planned_anew);
    EXPECT_EQ(session.last_step().evictions, 0);
    EXPECT_LE(test_memory().stats().mapped_peak, budget);
    const Bytes peak = test_memory().stats().allocated_peak;
    if (schedule.in_flight < schedule.batches.size()) {
      EXPECT_EQ(peak, session.predicted_peak());
    } else {  // no gradient is there while all of them are
      EXPECT_LE(peak, session.predicted_peak());
      EXPECT_GE(peak + 2 * test_memory().rounded(1),
                session.predicted_peak() - taken_by(schedule.net.layers->parameters()));
    }

    expect_same(expected, schedule.net.gradients());
    schedule.net.layers->zero_grad();
  }
  return session.last_step().replayed_ops;
}

}  // namespace snug::testing
