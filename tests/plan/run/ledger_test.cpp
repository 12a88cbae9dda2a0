#include "snug/plan/run/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <utility>
#include <vector>

namespace snug::plan {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

/// A flow, its ledger, and what was dropped since it was last asked for.
struct Books {
  Dataflow flow;
  std::vector<ValueId> dropped;
  Ledger ledger{flow, [this](ValueId v) { dropped.push_back(v); }};
  ValueId leaf() {
    const ValueId v = flow.add_leaf();
    ledger.hold(v);
    return v;
  }
  ValueId op(const std::vector<ValueId>& inputs, SegmentId segment = kRootSegment) {
    flow.add_op(inputs, segment);
    return flow.add_output();
  }
  ValueId in_place(const std::vector<ValueId>& inputs, ValueId target) {
    flow.add_op(inputs, kRootSegment);
    ledger.lose(target);
    return flow.add_output(target);
  }
  /// As the executor does, without contents.
  Replay replay(ValueId target) {
    const Replay r = ledger.schedule(target);
    ledger.pin(r);
    for (const Replay::Step& step : r.steps) {
      if (const auto* fetch = std::get_if<Fetch>(&step)) {
        ledger.cache(fetch->value);
        continue;
      }
      const RunAgain& run = std::get<RunAgain>(step);
      for (const Output& out : flow.outputs(run.op)) {
        if (!ledger.resident(out.value)) ledger.cache(out.value);
      }
      ledger.finish(run);
    }
    ledger.unpin(r, r.steps.size());
    return r;
  }
  std::vector<ValueId> take_dropped() { return std::exchange(dropped, {}); }
};

std::vector<OpId> ops_of(const Replay& replay) {
  std::vector<OpId> ops;
  for (const Replay::Step& step : replay.steps) {
    if (const auto* run = std::get_if<RunAgain>(&step)) ops.push_back(run->op);
  }
  return ops;
}

std::vector<ValueId> fetched_by(const Replay& replay) {
  std::vector<ValueId> values;
  for (const Replay::Step& step : replay.steps) {
    if (const auto* fetch = std::get_if<Fetch>(&step)) values.push_back(fetch->value);
  }
  return values;
}

const RunAgain& run_at(const Replay& replay, std::size_t i) { return std::get<RunAgain>(replay.steps.at(i)); }

/// leaf -> a -> b -> c, operators 0, 1, 2.
struct Row : Books {
  ValueId l = leaf(), a = op({l}), b = op({a}), c = op({b});
};

TEST(Ledger, DropsHeldValuesOnSettleThatNothingNeeds) {
  Row r;
  for (ValueId v : {r.a, r.b, r.c}) r.ledger.hold(v);
  r.ledger.pack(r.b);
  EXPECT_THAT(r.take_dropped(), IsEmpty());
  r.ledger.settle();
  // b is there, so nothing will be replayed: not even the leaf is needed.
  EXPECT_THAT(r.take_dropped(), UnorderedElementsAre(r.l, r.a, r.c));
  EXPECT_TRUE(r.ledger.held(r.b));
  EXPECT_FALSE(r.ledger.resident(r.a));
}

TEST(Ledger, KeepsTheSourcesOfWhatWillBeReplayed) {
  Row r;
  r.ledger.hold(r.a);
  r.ledger.pack(r.c);
  r.ledger.settle();
  EXPECT_THAT(r.take_dropped(), ElementsAre(r.l));
  EXPECT_TRUE(r.ledger.needed(r.a));
  EXPECT_TRUE(r.ledger.needed(r.b));
  EXPECT_EQ(r.ledger.packs(r.a), 0);
  EXPECT_EQ(r.ledger.packs(r.c), 1);
}

TEST(Ledger, ReplaysFromTheNearestResidentValueAndDropsWhatLiesBetween) {
  Row r;
  r.ledger.hold(r.a);
  r.ledger.pack(r.c);
  r.ledger.settle();
  const Replay replay = r.ledger.schedule(r.c);
  EXPECT_THAT(ops_of(replay), ElementsAre(1, 2));
  EXPECT_THAT(replay.sources, ElementsAre(r.a));
  EXPECT_THAT(run_at(replay, 0).drops, IsEmpty());
  EXPECT_THAT(run_at(replay, 1).drops, ElementsAre(r.b));
}

TEST(Ledger, CachesWhatWaitsAndDropsItWhenTheLastSavedTensorIsUnpacked) {
  Row r;
  r.ledger.pack(r.b);
  r.ledger.pack(r.b);
  r.ledger.pack(r.c);
  r.ledger.settle();
  EXPECT_THAT(ops_of(r.replay(r.c)), ElementsAre(0, 1, 2));
  EXPECT_THAT(r.take_dropped(), ElementsAre(r.a));
  EXPECT_TRUE(r.ledger.cached(r.b) && r.ledger.cached(r.c));
  r.ledger.consume(r.c);
  EXPECT_THAT(r.take_dropped(), ElementsAre(r.c));
  r.ledger.consume(r.b);
  EXPECT_TRUE(r.ledger.cached(r.b));
  r.ledger.consume(r.b);
  EXPECT_THAT(r.take_dropped(), ElementsAre(r.b));
}

TEST(Ledger, DropsTheSourcesWhenTheLastSavedTensorThatNeedsThemIsReleased) {
  Row r;
  r.ledger.hold(r.a);
  r.ledger.pack(r.b);
  r.ledger.pack(r.c);
  r.ledger.settle();
  r.take_dropped();
  r.replay(r.c);
  r.take_dropped();
  r.ledger.consume(r.c);
  r.ledger.release(r.c, true);
  EXPECT_THAT(r.take_dropped(), ElementsAre(r.c));
  EXPECT_TRUE(r.ledger.held(r.a));
  r.ledger.consume(r.b);
  r.ledger.release(r.b, true);
  EXPECT_THAT(r.take_dropped(), UnorderedElementsAre(r.b, r.a));
}

TEST(Ledger, ForgetsASavedTensorThatWasNeverUnpacked) {
  Row r;
  r.ledger.pack(r.c);
  r.ledger.settle();
  r.ledger.release(r.c, false);
  EXPECT_THAT(r.take_dropped(), ElementsAre(r.l));
  EXPECT_FALSE(r.ledger.needed(r.c) || r.ledger.needed(r.b));
}

TEST(Ledger, TakesAnOverwrittenValueOverWhenNothingElseReadsIt) {
  Books r;
  const ValueId l = r.leaf(), a = r.op({l}), b = r.in_place({a}, a);
  r.ledger.pack(b);
  r.ledger.settle();
  const Replay replay = r.ledger.schedule(b);
  EXPECT_THAT(ops_of(replay), ElementsAre(0, 1));
  EXPECT_THAT(run_at(replay, 1).copies, IsEmpty());
  EXPECT_THAT(run_at(replay, 1).drops, ElementsAre(a));
}

TEST(Ledger, CopiesAnOverwrittenValueThatWaitsOrIsHeld) {
  for (const bool hold : {false, true}) {
    Books r;
    const ValueId l = r.leaf(), a = r.op({l}), b = r.in_place({a}, a);
    if (hold) r.ledger.hold(a);
    r.ledger.pack(a);
    r.ledger.pack(b);
    r.ledger.settle();
    const Replay replay = r.ledger.schedule(b);
    EXPECT_EQ(replay.steps.size(), hold ? 1U : 2U);
    EXPECT_THAT(run_at(replay, replay.steps.size() - 1).copies, ElementsAre(a));
    EXPECT_THAT(run_at(replay, replay.steps.size() - 1).drops, IsEmpty());
  }
}

TEST(Ledger, FetchesWhatIsOffloadedInsteadOfMakingItAgain) {
  Row r;
  r.ledger.offload(r.b);
  r.ledger.pack(r.b);
  r.ledger.pack(r.c);
  r.ledger.settle();
  EXPECT_THAT(r.take_dropped(), ElementsAre(r.l)) << "nothing before it is needed";
  const Replay replay = r.replay(r.c);
  EXPECT_THAT(ops_of(replay), ElementsAre(2));
  EXPECT_THAT(fetched_by(replay), ElementsAre(r.b));
  EXPECT_TRUE(r.ledger.cached(r.b)) << "it is waited for";
  r.ledger.consume(r.c);
  r.ledger.consume(r.b);
  EXPECT_THAT(r.take_dropped(), ElementsAre(r.c, r.b));
  // Another pass fetches it again.
  r.ledger.begin_pass();
  EXPECT_THAT(fetched_by(r.replay(r.b)), ElementsAre(r.b));
  EXPECT_THAT(ops_of(r.replay(r.c)), ElementsAre(2));
}

TEST(Ledger, FetchesInFrontOfTheFirstReaderAndDropsBehindTheLast) {
  // l -> a -> b -> c; d reads c and a; a leaf m that is elsewhere is read by b and d.
  Books r;
  const ValueId l = r.leaf(), m = r.leaf(), a = r.op({l}), b = r.op({a, m}), c = r.op({b}), d = r.op({c, m}),
                e = r.op({d});
  r.ledger.offload(m);
  r.ledger.pack(e);
  r.ledger.settle();
  const Replay replay = r.ledger.schedule(e);
  ASSERT_EQ(replay.steps.size(), 6U);
  EXPECT_EQ(std::get<RunAgain>(replay.steps[0]).op, 0) << "which does not read it";
  EXPECT_EQ(std::get<Fetch>(replay.steps[1]).value, m);
  EXPECT_THAT(run_at(replay, 2).drops, ElementsAre(a)) << "it is read once more";
  EXPECT_THAT(run_at(replay, 4).drops, UnorderedElementsAre(c, m));
  EXPECT_THAT(replay.sources, UnorderedElementsAre(l, m, m));
  (void)b;
}

TEST(Ledger, WhatWasFetchedCanBeEvictedAndIsFetchedAgain) {
  Row r;
  r.ledger.hold(r.b);
  r.ledger.offload(r.b);
  r.ledger.pack(r.b);
  r.ledger.pack(r.c);
  r.ledger.settle(/*keep_leaves=*/true);
  EXPECT_FALSE(r.ledger.evictable(r.b)) << "it is absent";
  r.replay(r.b);
  ASSERT_TRUE(r.ledger.evictable(r.b));
  r.ledger.evict(r.b);
  EXPECT_EQ(r.ledger.residency(r.b), Residency::Absent);
  EXPECT_EQ(r.ledger.demand(1), 0) << "its operator need not run";
  EXPECT_THAT(fetched_by(r.replay(r.c)), ElementsAre(r.b));
}

TEST(Ledger, OffloadingLetsGoOfWhatTheValueWasMadeOf) {
  Row r;
  r.ledger.hold(r.a);
  r.ledger.pack(r.b);
  r.ledger.settle();
  EXPECT_EQ(r.ledger.demand(1), 1);
  EXPECT_TRUE(r.ledger.held(r.a)) << "b is made of it";
  r.take_dropped();
  r.ledger.offload(r.b);
  EXPECT_EQ(r.ledger.demand(1), 0);
  EXPECT_THAT(r.take_dropped(), ElementsAre(r.a));
  r.ledger.release(r.b, false);
  EXPECT_TRUE(r.ledger.useless(r.b));
  r.ledger.forget(r.b);
  EXPECT_FALSE(r.ledger.at_hand(r.b));
}

TEST(Ledger, AReplayThatIsCutShortLeavesNothingPinned) {
  Row r;
  r.ledger.pack(r.c);
  r.ledger.settle(/*keep_leaves=*/true);
  const Replay replay = r.ledger.schedule(r.c);
  const Replay other = r.ledger.schedule(r.c);  // of another thread
  r.ledger.pin(other);
  r.ledger.pin(replay);
  for (std::size_t i = 0; i < 2; ++i) {
    const RunAgain& run = run_at(replay, i);
    ASSERT_TRUE(r.ledger.begin(run));
    r.ledger.cache(r.flow.outputs(run.op)[0].value);
    r.ledger.end(run);
    r.ledger.finish(run);
  }
  EXPECT_FALSE(r.ledger.evictable(r.b, /*in_need=*/true)) << "the next step reads it";
  r.ledger.cache(r.a);
  r.ledger.finish(run_at(other, 0));  // the other one made a again, and still reads it
  r.ledger.unpin(replay, 2);
  EXPECT_FALSE(r.ledger.evictable(r.a, /*in_need=*/true));
}

TEST(Ledger, DoesNotReplayWhatIsReplacedWhole) {
  Books r;
  const ValueId l = r.leaf(), a = r.op({l}), b = r.in_place({l}, a);
  r.ledger.pack(b);
  r.ledger.settle();
  const Replay replay = r.ledger.schedule(b);
  EXPECT_THAT(ops_of(replay), ElementsAre(1));
  EXPECT_THAT(run_at(replay, 0).copies, IsEmpty());
}

TEST(Ledger, MakesAlongWhatWaitsAndReadsTheSameInputs) {
  Books r;
  const ValueId l = r.leaf(), a = r.op({l}), side = r.op({a}), other = r.op({l}), b = r.op({a});
  for (ValueId v : {side, other, b}) r.ledger.pack(v);
  r.ledger.settle();
  // side (operator 1) reads a, which is made anyway; other (operator 2) shares nothing that is made.
  EXPECT_THAT(ops_of(r.replay(b)), ElementsAre(0, 1, 3));
  EXPECT_TRUE(r.ledger.cached(side));
  EXPECT_FALSE(r.ledger.resident(other));
}

TEST(Ledger, MakesNothingAlongThatEndsInNothing) {
  Books r;
  const ValueId l = r.leaf(), a = r.op({l}), idle = r.op({a}), idler = r.op({idle}), b = r.op({a});
  r.ledger.pack(b);
  r.ledger.pack(idler);
  r.ledger.settle();
  r.ledger.begin_pass();
  r.ledger.consume(idler);  // it does not wait any more, but its saved tensor is still there
  EXPECT_THAT(ops_of(r.ledger.schedule(b)), ElementsAre(0, 3));
}

TEST(Ledger, LeavesANestedSegmentForItsOwnTurnAndKeepsItsInput) {
  Books r;
  const SegmentId nested = r.flow.open_segment(kRootSegment);
  const ValueId l = r.leaf(), a = r.op({l}), n1 = r.op({a}, nested), n2 = r.op({n1}, nested), b = r.op({n2});
  for (ValueId v : {n1, n2, b}) r.ledger.pack(v);
  r.ledger.settle();
  EXPECT_THAT(ops_of(r.replay(b)), ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(r.ledger.cached(a));
  r.ledger.consume(b);
  r.ledger.release(b, true);
  for (ValueId v : {n2, n1}) {
    r.ledger.consume(v);
    r.ledger.release(v, true);
  }
  EXPECT_FALSE(r.ledger.resident(a));
}

TEST(Ledger, ReplaysOnlyTheSegmentOfTheTargetAlong) {
  Books r;
  const SegmentId first = r.flow.open_segment(kRootSegment), second = r.flow.open_segment(kRootSegment);
  const ValueId l = r.leaf(), a = r.op({l}, first), x = r.op({a}, first), b = r.op({a}, second);
  r.ledger.pack(x);
  r.ledger.pack(b);
  r.ledger.settle();
  // x waits and reads a too, but it belongs to the segment whose turn comes later.
  EXPECT_THAT(ops_of(r.ledger.schedule(b)), ElementsAre(0, 2));
}

TEST(Ledger, WaitsAndReplaysAgainInASecondPass) {
  Row r;
  r.ledger.pack(r.b);
  r.ledger.pack(r.c);
  r.ledger.settle();
  for (int pass = 0; pass < 2; ++pass) {
    SCOPED_TRACE(pass);
    r.ledger.begin_pass();
    EXPECT_THAT(ops_of(r.replay(r.c)), ElementsAre(0, 1, 2));
    r.ledger.consume(r.c);
    EXPECT_TRUE(r.ledger.cached(r.b));
    // What is not unpacked in a pass goes at its end.
    if (pass == 0) r.ledger.consume(r.b);
    r.ledger.end_pass();
    EXPECT_FALSE(r.ledger.resident(r.b));
    EXPECT_TRUE(r.ledger.held(r.l));
  }
}

TEST(Ledger, RefusesToMakeALeafOrWhatItsLeafIsGoneFor) {
  Row r;
  r.ledger.hold(r.b);
  r.ledger.pack(r.b);
  r.ledger.settle();
  EXPECT_FALSE(r.ledger.resident(r.l));
  EXPECT_THROW((void)r.ledger.schedule(r.l), std::logic_error);
  EXPECT_THROW((void)r.ledger.schedule(r.a), std::logic_error);
}

TEST(Ledger, GivesUpASourceOfARunningReplayOnlyInNeedAndTheStepTells) {
  Row r;
  for (ValueId v : {r.a, r.c}) r.ledger.pack(v);
  r.ledger.hold(r.a);
  r.ledger.settle(/*keep_leaves=*/true);
  const Replay replay = r.ledger.schedule(r.c);
  EXPECT_THAT(ops_of(replay), ElementsAre(1, 2));
  r.ledger.pin(replay);
  EXPECT_FALSE(r.ledger.evictable(r.a));
  EXPECT_TRUE(r.ledger.evictable(r.a, /*in_need=*/true));
  ASSERT_TRUE(r.ledger.begin(run_at(replay, 0)));
  EXPECT_FALSE(r.ledger.evictable(r.a, /*in_need=*/true));  // the operator that reads it runs
  r.ledger.end(run_at(replay, 0));
  r.ledger.evict(r.a);
  EXPECT_FALSE(r.ledger.begin(run_at(replay, 0)));
  r.ledger.unpin(replay, 0);
  // The rest is scheduled anew, from what is left.
  EXPECT_THAT(ops_of(r.ledger.schedule(r.c)), ElementsAre(0, 1, 2));
}

TEST(Ledger, BringsAnEvictedValueBackFromWhatIsLeft) {
  Row r;
  for (ValueId v : {r.a, r.c}) r.ledger.hold(v);
  r.ledger.pack(r.a);
  r.ledger.pack(r.c);
  r.ledger.settle();
  EXPECT_THAT(r.take_dropped(), ElementsAre(r.l));
  EXPECT_TRUE(r.ledger.evictable(r.c));
  EXPECT_FALSE(r.ledger.evictable(r.l));
  // The leaf is gone, so a could not come back; c takes b and itself.
  const auto seconds = r.ledger.recovery_seconds([](OpId op) { return op + 1.0; });
  EXPECT_TRUE(std::isinf(seconds[0]));
  EXPECT_EQ(seconds[2], 2.0 + 3.0);
  r.ledger.evict(r.c);
  EXPECT_THAT(r.take_dropped(), ElementsAre(r.c));
  r.ledger.release(r.a, false);  // c's replay reads it
  EXPECT_TRUE(r.ledger.held(r.a));
  EXPECT_THAT(ops_of(r.replay(r.c)), ElementsAre(1, 2));
  r.ledger.consume(r.c);
  r.ledger.release(r.c, true);
  EXPECT_FALSE(r.ledger.resident(r.a));
}

TEST(Ledger, DropsWhatIsReleasedWhileTheOperatorRunsThatMakesIt) {
  Books r;
  const ValueId l = r.leaf();
  r.flow.add_op(std::vector{l}, kRootSegment);
  const ValueId a = r.flow.add_output(), b = r.flow.add_output();
  r.ledger.pack(a);
  r.ledger.pack(b);
  r.ledger.settle(/*keep_leaves=*/true);
  const Replay replay = r.ledger.schedule(a);
  EXPECT_THAT(run_at(replay, 0).drops, IsEmpty()) << "b is waited for";
  r.ledger.pin(replay);
  ASSERT_TRUE(r.ledger.begin(run_at(replay, 0)));
  r.ledger.release(b, false);
  for (ValueId v : {a, b}) r.ledger.cache(v);
  r.ledger.finish(run_at(replay, 0));
  r.ledger.end(run_at(replay, 0));
  EXPECT_THAT(r.take_dropped(), ElementsAre(b));
  r.ledger.unpin(replay, 1);
  EXPECT_TRUE(r.ledger.cached(a));
}

TEST(Ledger, DropsWhatIsReleasedWhileAReplayPinsItWhenThatIsOver) {
  for (const std::size_t finished : {1U, 2U}) {
    SCOPED_TRACE(finished);
    Row r;
    for (ValueId v : {r.a, r.b}) r.ledger.pack(v);
    r.ledger.settle(/*keep_leaves=*/true);
    const Replay replay = r.ledger.schedule(r.b);
    r.ledger.pin(replay);
    for (std::size_t i = 0; i < finished; ++i) {
      const RunAgain& run = run_at(replay, i);
      ASSERT_TRUE(r.ledger.begin(run));
      if (i + 1 == finished) {
        r.ledger.release(r.a, false);
        r.ledger.release(r.b, false);
      }
      r.ledger.cache(r.flow.outputs(run.op)[0].value);
      r.ledger.finish(run);
      r.ledger.end(run);
    }
    EXPECT_TRUE(r.ledger.resident(finished == 1 ? r.a : r.b)) << "the replay is under way";
    r.ledger.unpin(replay, finished);
    EXPECT_FALSE(r.ledger.resident(r.a) || r.ledger.resident(r.b));
  }
}

TEST(Ledger, ProtectsTheSourcesOfARunningReplay) {
  Row r;
  r.ledger.hold(r.a);
  r.ledger.pack(r.a);
  r.ledger.pack(r.c);
  r.ledger.settle();
  const Replay replay = r.ledger.schedule(r.c);
  r.ledger.pin(replay);
  EXPECT_FALSE(r.ledger.evictable(r.a));
  r.ledger.release(r.a, false);
  r.ledger.release(r.c, false);
  EXPECT_TRUE(r.ledger.held(r.a));
  r.ledger.unpin(replay, 0);
  EXPECT_FALSE(r.ledger.resident(r.a));
}

}  // namespace
}  // namespace snug::plan
