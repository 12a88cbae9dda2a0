// What processes make together, and may make again together.
#include "snug/plan/step/together.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <variant>
#include <vector>

#include "snug/plan/run/ledger.h"
#include "snug/plan/run/simulator.h"
#include "tests/plan/run/books.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

using ::testing::ElementsAre;

constexpr const char* kGather = "snug_collective::together";

/// leaf -> part -> whole, gathered -> product, both of which are saved, and something else of the part.
struct Gathered {
  Gathered() {
    l = flow.add_leaf();
    part = made({l}, Runs::Alone);
    whole = made({part}, Runs::Together);
    product = made({whole}, Runs::Alone);
    other = made({part}, Runs::Alone);
    ledger.hold(l);
  }
  ValueId made(const std::vector<ValueId>& inputs, Runs runs) {
    flow.add_op(inputs, kRootSegment, runs);
    return flow.add_output();
  }
  Dataflow flow;
  ValueId l = 0, part = 0, whole = 0, product = 0, other = 0;
  Ledger ledger{flow, [](ValueId) {}};
};

/// Whoever evicts it alone could not make it again alone, nor what is made of it.
TEST(Together, WhatIsMadeOfWhatIsAbsentCannotBeEvicted) {
  for (const bool held : {true, false}) {
    Gathered g;
    const auto recovery = [&](ValueId v) {
      return g.ledger.recovery_seconds([](OpId) { return 1.0; })[at(g.flow.producer(v))];
    };
    if (held) g.ledger.hold(g.whole);
    EXPECT_EQ(recovery(g.part), 1.0);
    EXPECT_TRUE(std::isinf(recovery(g.whole)));
    EXPECT_EQ(std::isinf(recovery(g.product)), !held);
  }
}

/// When part is made again may differ between processes, as after an eviction; when whole is, must not.
TEST(Together, IsRunAgainWhereItIsAskedForAndNotAlongWithOthers) {
  for (const Runs runs : {Runs::Alone, Runs::Together}) {
    Dataflow flow;
    Ledger ledger(flow, [](ValueId) {});
    const ValueId l = flow.add_leaf();
    const auto made = [&](ValueId of, Runs how) {
      flow.add_op(std::vector{of}, kRootSegment, how);
      return flow.add_output();
    };
    const ValueId part = made(l, Runs::Alone), whole = made(part, runs), other = made(part, Runs::Alone);
    ledger.hold(l);
    ledger.pack(whole);
    ledger.pack(other);
    ledger.settle();
    const auto ops = synthetic::ops_of(ledger.schedule(other));
    if (runs == Runs::Alone) {
      EXPECT_THAT(ops, ElementsAre(0, 1, 2)) << "along";
    } else {
      EXPECT_THAT(ops, ElementsAre(0, 2));
      EXPECT_THAT(synthetic::ops_of(ledger.schedule(whole)), ElementsAre(0, 1)) << "on its own";
    }
  }
}

/// One process has evicted what it can make again alone, so that less is made along: it does not gather again for that.
TEST(Together, IsRunOnceWhateverIsMadeAlong) {
  for (const bool evicts : {false, true}) {
    Dataflow flow;
    std::vector<ValueId> dropped;
    Ledger ledger(flow, [&](ValueId v) { dropped.push_back(v); });
    const auto made = [&](const std::vector<ValueId>& of, Runs how) {
      flow.add_op(of, kRootSegment, how);
      return flow.add_output();
    };
    const ValueId l = flow.add_leaf(), part = made({l}, Runs::Alone), q = made({l}, Runs::Alone),
                  whole = made({part}, Runs::Together), first = made({whole}, Runs::Alone),
                  second = made({first, q}, Runs::Alone), third = made({whole, q}, Runs::Alone);
    for (const ValueId v : {l, q}) ledger.hold(v);
    for (const ValueId v : {q, first, second, third}) ledger.pack(v);
    ledger.settle();
    if (evicts) ledger.evict(q);
    int gathered = 0;
    for (const ValueId target : {first, third, q, second}) {
      while (!ledger.resident(target)) {
        const ReplaySchedule replay = ledger.schedule(target);
        ledger.pin(replay);
        for (const auto& one : replay.steps) {
          const auto& step = std::get<RunAgain>(one);
          ASSERT_TRUE(ledger.begin(step));
          for (const Output& out : flow.outputs(step.op)) {
            gathered += out.value == whole ? 1 : 0;
            ledger.cache(out.value);
          }
          ledger.finish(step);
          ledger.end(step);
        }
        ledger.unpin(replay, replay.steps.size());
      }
      EXPECT_EQ(gathered, 1) << "at the first of them, and never again";
      ledger.consume(target);
      ledger.release(target, Unpacked::Now);
    }
    EXPECT_FALSE(ledger.resident(whole)) << "nobody needs it any more";
  }
}

/// A process that replays a step, and evicts as it likes.
class Process {
 public:
  Process(const Dataflow& flow, const std::vector<ValueId>& held, const std::vector<ValueId>& packed)
      : flow_(flow), ledger_(flow, [](ValueId) {}) {
    for (const ValueId v : held) ledger_.hold(v);
    for (const ValueId v : packed) ledger_.pack(v);
  }
  /// Each with a chance of one in two what the pressure may take.
  int evict(std::mt19937& random) {
    int evicted = 0;
    const std::vector<double> seconds = ledger_.recovery_seconds([](OpId) { return 1.0; });
    for (ValueId v = 0; v < flow_.values(); ++v) {
      if (flow_.is_leaf(v) || random() % 2 == 0 || !ledger_.evictable(v)) continue;
      if (std::isinf(seconds[at(flow_.producer(v))])) continue;
      ledger_.evict(v);
      ++evicted;
    }
    return evicted;
  }
  void settle() { ledger_.settle(Leaves::Stay); }
  /// What runs together with others for it.
  std::vector<OpId> unpack(ValueId target) {
    std::vector<OpId> together;
    while (!ledger_.resident(target)) {
      const ReplaySchedule replay = ledger_.schedule(target);
      ledger_.pin(replay);
      for (const auto& one : replay.steps) {
        const auto& step = std::get<RunAgain>(one);
        EXPECT_TRUE(ledger_.begin(step));
        if (flow_.runs_together(step.op)) together.push_back(step.op);
        for (const Output& out : flow_.outputs(step.op)) ledger_.cache(out.value);
        ledger_.finish(step);
        ledger_.end(step);
      }
      ledger_.unpin(replay, replay.steps.size());
    }
    ledger_.consume(target);
    ledger_.release(target, Unpacked::Now);
    return together;
  }

 private:
  const Dataflow& flow_;
  Ledger ledger_;
};

/// The claim that all of it rests on: with one plan, the same collectives in the same order in each process, each once,
/// whatever is evicted where.
TEST(Together, RunsInTheSameOrderWhateverEachProcessEvicts) {
  std::mt19937 random(17);  // NOLINT: the same each time
  int evicted = 0, run = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    Dataflow flow;
    for (int i = 0; i < 2; ++i) flow.add_leaf();
    std::vector<ValueId> held{0, 1}, packed;
    const int ops = 4 + static_cast<int>(random() % 14);
    SegmentId segment = kRootSegment;
    for (int i = 0; i < ops; ++i) {
      if (random() % 6 == 0) segment = flow.open_segment(random() % 2 == 0 ? kRootSegment : segment);
      if (random() % 8 == 0) segment = kRootSegment;
      std::vector<ValueId> inputs;
      for (std::uint32_t k = 0; k <= random() % 3; ++k) {
        // Mostly of what was made last.
        const auto back = static_cast<ValueId>(random() % std::min<std::uint32_t>(5, flow.values()));
        inputs.push_back(flow.values() - 1 - back);
      }
      flow.add_op(inputs, segment, random() % 4 == 0 ? Runs::Together : Runs::Alone);
      const ValueId v = flow.add_output();
      if (random() % 3 == 0) held.push_back(v);
      if (random() % 2 == 0) packed.push_back(v);
    }
    Process calm(flow, held, packed), pressed(flow, held, packed);
    evicted += pressed.evict(random);
    for (Process* process : {&calm, &pressed}) process->settle();
    std::vector<OpId> once;
    std::vector<ValueId> order = packed;
    if (trial % 3 == 0) std::ranges::shuffle(order, random);
    if (trial % 3 == 1) std::ranges::reverse(order);
    for (const ValueId target : order) {
      evicted += pressed.evict(random);
      const std::vector<OpId> expected = calm.unpack(target);
      ASSERT_EQ(pressed.unpack(target), expected) << "trial " << trial << ", value " << target;
      for (const OpId op : expected) once.push_back(op);
    }
    run += static_cast<int>(once.size());
    std::ranges::sort(once);
    EXPECT_EQ(std::ranges::adjacent_find(once), once.end()) << "trial " << trial << ": one was run twice";
  }
  EXPECT_GT(evicted, 3000);
  EXPECT_GT(run, 1000);
}

StepGraph gathered_step() {
  synthetic::GraphBuilder b;
  const ValueId l = b.leaf(), part = b.op("part", {l}, 1_KiB), whole = b.op(kGather, {part}, 4_KiB);
  b.save(whole);
  for (const ValueId v : {part, whole}) b.die(v);
  b.settle();
  b.node({whole}, 1_KiB);
  return b.take();
}

TEST(Together, IsWhatItsNameSays) {
  StepGraph graph = gathered_step();
  EXPECT_FALSE(graph.flow.runs_together(0));
  EXPECT_TRUE(graph.flow.runs_together(1));
  EXPECT_TRUE(may_replay_together(graph));
  EXPECT_EQ(step_graph_from_json(to_json(graph)), graph) << "also in a file";
  keep_what_is_made_together(graph);
  EXPECT_FALSE(may_replay_together(graph));
  EXPECT_EQ(graph.values[at(graph.flow.outputs(1).front().value)].must, Must::Keep);
  EXPECT_EQ(graph.values[at(graph.flow.outputs(0).front().value)].must, Must::Nothing);
}

/// What is written over later is not held, so that pressure takes nothing that is made of it: it could not be made
/// again but together.
TEST(Together, WhatIsWrittenOverIsNotHeld) {
  synthetic::GraphBuilder b;
  const ValueId l = b.leaf(), sum = b.op(kGather, {l}, 4_KiB), gate = b.op("gate", {sum}, 4_KiB);
  const ValueId more = b.in_place("add_", {sum}, sum), other = b.op(kGather, {gate}, 4_KiB);
  b.save(gate);
  b.settle();
  b.node({gate}, 1_KiB);
  const StepGraph step = b.take();
  for (const bool keeps : {false, true}) {
    StepGraph graph = step;
    keeps ? keep_what_is_made_together(graph) : let_go_of_what_is_written_over(graph);
    EXPECT_EQ(graph.values[at(sum)].must, Must::Recompute);
    // Where each process has a plan of its own it is kept what would need the sum again.
    EXPECT_EQ(graph.values[at(gate)].must, keeps ? Must::Keep : Must::Nothing);
    EXPECT_EQ(graph.values[at(other)].must, keeps ? Must::Keep : Must::Nothing);
    EXPECT_EQ(graph.values[at(more)].must, keeps ? Must::Keep : Must::Nothing);
    EXPECT_EQ(may_replay_together(graph), !keeps);
  }
}

}  // namespace
}  // namespace snug::plan
