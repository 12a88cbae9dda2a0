#pragma once

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <utility>

#include "snug/plan/planner.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/step/legal_actions.h"
#include "snug/snug.h"
#include "tests/device/test_device.h"

namespace snug::testing {

inline constexpr std::array kLossy = {plan::Codec::BFloat16, plan::Codec::Float8, plan::Codec::Int8, plan::Codec::Int4};

/// As lossy as can be, and the rest kept.
inline plan::MemoryPlan lossy_all(const plan::StepGraph& graph) {
  plan::MemoryPlan plan = plan::make_plan(graph, "none", std::nullopt);
  for (plan::ValueId v = 0; v < graph.flow.values(); ++v) {
    for (const plan::Action action : plan::legal_actions(graph, v)) {
      if (plan::is_lossy(action)) plan.actions[plan::at(v)] = action;
    }
  }
  return plan::predicted(graph, std::move(plan));
}

inline replay::RecordedStep recorded_lossy(const replay::Forward& forward, plan::Codec lossy) {
  return replay::record_step(forward, test_memory(), {.lossy = lossy});
}

inline Session following_lossy(replay::RecordedStep step, const plan::MemoryPlan& plan) {
  plan::Planner planner(step.graph, plan);
  return {std::move(step), std::move(planner), std::nullopt, test_memory()};
}

class Lossy : public ::testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(4); }
};

}  // namespace snug::testing
