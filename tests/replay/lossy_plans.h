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
#include "tests/replay/compressing_plan.h"

namespace snug::testing {

inline constexpr std::array kLossy = {plan::Codec::BFloat16, plan::Codec::Float8, plan::Codec::Int8, plan::Codec::Int4};

/// As lossy as can be, and the rest kept.
inline plan::MemoryPlan lossy_all(const plan::StepGraph& graph) {
  return compressing(graph, [](plan::Action action) { return plan::is_lossy(action); });
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
