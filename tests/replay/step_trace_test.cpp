// What a session tells of a step.
#include "snug/replay/step_trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <variant>

#include "snug/memory/held_limit.h"
#include "snug/plan/run/presets.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"
#include "tests/replay/layers_net.h"

namespace snug {
namespace {

using testing::Net;
using testing::test_memory;

std::int64_t count(const replay::StepTrace& trace, replay::StepTrace::Cause cause) {
  return std::ranges::count(trace.entries, cause, &replay::StepTrace::Entry::cause);
}

TEST(StepTrace, TellsWhatHappenedInOrderAndWhy) {
  using Cause = replay::StepTrace::Cause;
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  const auto recorded = replay::record_step([&] { return net(x); }, test_memory());
  const Bytes peak = plan::plan_none(recorded.graph).predicted_peak;
  Session session(recorded, "optimal", plan::Budget::for_limit(peak * 7 / 10), test_memory());
  session.backward(net, x);
  const replay::StepTrace& planned = session.last_trace();
  EXPECT_GT(planned.replayed_ops(), 0);
  EXPECT_EQ(count(planned, Cause::Plan), planned.replayed_ops());
  EXPECT_EQ(count(planned, Cause::Pressure), 0);
  ASSERT_EQ(count(planned, Cause::Program), 2);
  EXPECT_TRUE(std::holds_alternative<replay::BackwardEnded>(planned.entries.back().event));
  EXPECT_EQ(session.last_step().replayed_ops, planned.replayed_ops());
  double seconds = 0;
  for (const replay::StepTrace::Entry& entry : planned.entries) {
    EXPECT_GE(entry.seconds, seconds);
    seconds = entry.seconds;
    EXPECT_LE(std::accumulate(entry.bytes.begin(), entry.bytes.end(), Bytes{0}), peak * 7 / 10);
    EXPECT_GT(entry.bytes[static_cast<std::size_t>(memory::Tag::Weights)], 0);
  }
  net.layers->zero_grad();
  Session evicting(recorded, "none", std::nullopt, test_memory());
  const memory::HeldLimit limit(test_memory(), peak * 7 / 10);
  evicting.backward(net, x);
  const replay::StepTrace& pressed = evicting.last_trace();
  EXPECT_GT(pressed.evictions(), 0);
  EXPECT_GE(pressed.replayed_ops(), 1);
  EXPECT_EQ(count(pressed, Cause::Pressure), pressed.evictions() + pressed.replayed_ops());
  EXPECT_EQ(evicting.last_step().evictions, pressed.evictions());
}

}  // namespace
}  // namespace snug
