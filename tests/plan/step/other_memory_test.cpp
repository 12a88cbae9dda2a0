#include "snug/plan/step/other_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <stdexcept>

#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "tests/plan/random_graph.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

using ::testing::ElementsAre;

/// Two values, and what comes in between: `first` before backward, `second` in it, which stays.
StepGraph step_with(Bytes static_bytes, Bytes first, Bytes second, Bytes update) {
  synthetic::GraphBuilder b(static_bytes);
  const ValueId l = b.leaf(), v = b.op("op", {l}, 100);
  b.save(v);
  b.settle();
  if (first > 0) b.other(first, 0);
  b.unpack(v);
  if (second > 0) b.other(second + 5, second);
  b.other(7, 0);
  b.release(v);
  StepGraph graph = b.take();
  graph.end_with_update({update}, 1);
  return graph;
}

TEST(OtherMemory, IsWhatIsThereBesideValues) {
  const OtherMemory memory = other_memory_of(step_with(1000, 30, 40, 20));
  EXPECT_THAT(memory.ends, ElementsAre(1000, 1000, 1000, 1000, 1040, 1040));
  EXPECT_THAT(memory.peaks, ElementsAre(1000, 1000, 1000, 1030, 1047, 1040));
  EXPECT_EQ(memory.update, 1060);
}

/// A step that has nothing in a gap gets what another one has there.
TEST(OtherMemory, BecomesThatOfAnotherStepOfTheSameValues) {
  const StepGraph one = step_with(1000, 0, 0, 0), other = step_with(1000, 30, 40, 20);
  EXPECT_EQ(hash_of_uses(one), hash_of_uses(other));
  for (const StepGraph* from : {&one, &other}) {
    StepGraph graph = one;
    set_other_memory(graph, other_memory_of(*from));
    EXPECT_EQ(other_memory_of(graph), other_memory_of(*from));
    EXPECT_EQ(plan_none(graph).predicted_peak, plan_none(*from).predicted_peak);
    EXPECT_EQ(graph.update_bytes, from->update_bytes);
    EXPECT_EQ(hash_of_uses(graph), hash_of_uses(*from));
  }
}

/// Once per recording in each process: 200,000 gaps that have nothing now took a minute where each moved what is behind
/// it.
TEST(OtherMemory, OfALongStepIsSetInOnePass) {
  constexpr int kGaps = 200'000;
  synthetic::GraphBuilder b(1000);
  const ValueId l = b.leaf(), v = b.op("op", {l}, 100);
  b.save(v);
  b.settle();
  for (int i = 0; i < kGaps; ++i) b.unpack(v), b.release(v);
  StepGraph graph = b.take();
  graph.parts.push_back({.device = 1, .ops = {{}}, .events = std::vector<DevicePart::Taken>(graph.events.size())});
  graph.parts.front().events.back().net = 5;
  OtherMemory memory = other_memory_of(graph);
  for (std::size_t i = 0; i + 1 < memory.peaks.size(); i += 2) memory.peaks[i] += static_cast<Bytes>(i);
  set_other_memory(graph, memory);
  EXPECT_EQ(other_memory_of(graph), memory);
  ASSERT_EQ(graph.parts.front().events.size(), graph.events.size());
  EXPECT_EQ(graph.parts.front().events.back().net, 5) << "the same event's";
}

/// What is there at most in any of several steps: under every plan the peak is the highest of theirs, to the byte.
TEST(OtherMemory, OfTheOneThatHasMostIsItsPeakUnderAnyPlan) {
  std::mt19937 random(5);  // NOLINT: the same each time
  for (int trial = 0; trial < 200; ++trial) {
    const StepGraph first = synthetic::random_graph(static_cast<std::uint64_t>(trial), 3 + trial % 20);
    std::vector<StepGraph> all(3, first);
    OtherMemory most = other_memory_of(first);
    for (StepGraph& graph : all) {
      OtherMemory memory = other_memory_of(graph);
      for (std::size_t i = 0; i < memory.ends.size(); ++i) {
        memory.ends[i] += static_cast<Bytes>(random() % 4096);
        memory.peaks[i] = std::max(memory.peaks[i], memory.ends[i]) + static_cast<Bytes>(random() % 4096);
        if (i > 0) memory.peaks[i] = std::max(memory.peaks[i], memory.ends[i - 1]);
      }
      set_other_memory(graph, memory);
      EXPECT_EQ(other_memory_of(graph), memory);
      for (std::size_t i = 0; i < memory.ends.size(); ++i) {
        most.ends[i] = std::max(most.ends[i], memory.ends[i]);
        most.peaks[i] = std::max(most.peaks[i], memory.peaks[i]);
      }
    }
    StepGraph of_all = first;
    set_other_memory(of_all, most);
    for (const MemoryPlan& plan : {plan_none(first), plan_every_block(first)}) {
      Bytes peak = 0;
      for (const StepGraph& graph : all) peak = std::max(peak, simulate(graph, plan).peak);
      EXPECT_EQ(simulate(of_all, plan).peak, peak) << trial;
    }
  }
}

TEST(OtherMemory, RefusesThatOfAnotherStep) {
  StepGraph graph = step_with(1000, 30, 40, 20);
  OtherMemory memory = other_memory_of(graph);
  memory.ends.pop_back();
  memory.peaks.pop_back();
  EXPECT_THROW(set_other_memory(graph, memory), std::logic_error);
}

}  // namespace
}  // namespace snug::plan
