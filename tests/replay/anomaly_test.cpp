// NaNs and infinities are named where they come up first.
#include "snug/replay/anomaly.h"

#include <gtest/gtest.h>

#include "snug/base/module_scope.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace snug {
namespace {

class Anomalies : public ::testing::Test {
 protected:
  /// What the step throws with detection on; empty when it throws nothing.
  std::string thrown_by(const replay::Forward& step, const replay::Forward& recorded) {
    auto& memory = testing::test_memory();
    auto graph = replay::record_step(recorded, memory);
    // Nothing is kept, so that backward replays.
    plan::Planner planner(graph.graph, plan::predicted(graph.graph, plan::bare_plan(graph.graph)));
    Session session(std::move(graph), std::move(planner), std::nullopt, memory);
    session.anomalies(snug::Anomalies::Refused);
    try {
      session.backward(step);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  at::Tensor w = torch::ones({3}, at::requires_grad());
  at::Tensor x = torch::ones({3});
};

TEST_F(Anomalies, OfForwardNameTheOperatorAndItsModule) {
  const auto step = [&] {
    const ModuleScope scope("head");
    return (w * x).log().sum();
  };
  EXPECT_EQ(thrown_by(step, step), "");
  const auto bad = [&] {
    x.zero_();
    return step();
  };
  const std::string text = thrown_by(bad, step);
  EXPECT_NE(text.find("anomaly: in forward, aten::log (operator "), std::string::npos) << text;
  EXPECT_NE(text.find(" in head) gave a NaN or an infinity, in a result of shape [3]"), std::string::npos) << text;
}

TEST_F(Anomalies, OfBackwardNameTheNodeAndItsOperator) {
  // sqrt(0) is 0, and its slope infinite.
  const auto step = [&] {
    const ModuleScope scope("norm");
    return (w * x).sqrt().sum();
  };
  EXPECT_EQ(thrown_by(step, step), "");
  const std::string text = thrown_by(
      [&] {
        x.zero_();
        return step();
      },
      step);
  EXPECT_NE(text.find("anomaly: in backward, SqrtBackward0, the gradient of aten::sqrt (operator "), std::string::npos)
      << text;
  EXPECT_NE(text.find(" in norm)"), std::string::npos) << text;
}

TEST_F(Anomalies, LeaveTheSessionUsable) {
  const auto step = [&] { return (w * x).log().sum(); };
  auto& memory = testing::test_memory();
  Session session(replay::record_step(step, memory), "none", std::nullopt, memory);
  session.anomalies(snug::Anomalies::Refused);
  x.zero_();
  const Bytes before = memory.stats().allocated;
  EXPECT_THROW(session.backward(step), Error);
  EXPECT_EQ(memory.stats().allocated, before);
  x.fill_(2);
  EXPECT_NO_THROW(session.backward(step));
}

TEST_F(Anomalies, OfARegionAreNamedToo) {
  const Region region(Recompute{}, RegionOptions{.detect_anomalies = true});
  EXPECT_NO_THROW((w * x).log().sum().backward());
  x.zero_();
  EXPECT_THROW((w * x).log(), Error);
}

TEST_F(Anomalies, OfAForwardPassAloneAreTold) {
  EXPECT_EQ(replay::first_non_finite([&] { return (w * x).log().sum(); }), std::nullopt);
  x.zero_();
  const auto found = replay::first_non_finite([&] { return (w * x).log().exp().sum(); });
  ASSERT_TRUE(found);
  EXPECT_NE(found->find("aten::log"), std::string::npos) << *found;
}

}  // namespace
}  // namespace snug
