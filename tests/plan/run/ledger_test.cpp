#include "snug/plan/run/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "tests/plan/run/books.h"

namespace snug::plan {
namespace {

using synthetic::Books;
using synthetic::fetched_by;
using synthetic::ops_of;
using synthetic::Row;
using synthetic::run_at;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

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
  const ReplaySchedule replay = r.ledger.schedule(r.c);
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
  r.ledger.release(r.c, Unpacked::Now);
  EXPECT_THAT(r.take_dropped(), ElementsAre(r.c));
  EXPECT_TRUE(r.ledger.held(r.a));
  r.ledger.consume(r.b);
  r.ledger.release(r.b, Unpacked::Now);
  EXPECT_THAT(r.take_dropped(), UnorderedElementsAre(r.b, r.a));
}

TEST(Ledger, ForgetsASavedTensorThatWasNeverUnpacked) {
  Row r;
  r.ledger.pack(r.c);
  r.ledger.settle();
  r.ledger.release(r.c, Unpacked::Not);
  EXPECT_THAT(r.take_dropped(), ElementsAre(r.l));
  EXPECT_FALSE(r.ledger.needed(r.c) || r.ledger.needed(r.b));
}

TEST(Ledger, TakesAnOverwrittenValueOverWhenNothingElseReadsIt) {
  Books r;
  const ValueId l = r.leaf(), a = r.op({l}), b = r.in_place({a}, a);
  r.ledger.pack(b);
  r.ledger.settle();
  const ReplaySchedule replay = r.ledger.schedule(b);
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
    const ReplaySchedule replay = r.ledger.schedule(b);
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
  const ReplaySchedule replay = r.replay(r.c);
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
  const ReplaySchedule replay = r.ledger.schedule(e);
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
  r.ledger.settle(Leaves::Stay);
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
  r.ledger.release(r.b, Unpacked::Not);
  EXPECT_TRUE(r.ledger.useless(r.b));
  r.ledger.forget(r.b);
  EXPECT_FALSE(r.ledger.at_hand(r.b));
}

TEST(Ledger, DoesNotReplayWhatIsReplacedWhole) {
  Books r;
  const ValueId l = r.leaf(), a = r.op({l}), b = r.in_place({l}, a);
  r.ledger.pack(b);
  r.ledger.settle();
  const ReplaySchedule replay = r.ledger.schedule(b);
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
  r.ledger.release(b, Unpacked::Now);
  for (ValueId v : {n2, n1}) {
    r.ledger.consume(v);
    r.ledger.release(v, Unpacked::Now);
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

/// Whose leaves are there as those of the target are, and no others: these may have been freed.
TEST(Ledger, MakesAlongWhatReadsLeavesOfTheSameGroup) {
  for (const GroupId group : {kAlwaysThere, 1, 2, kSeveralGroups}) {
    Books r;
    const ValueId l = r.leaf(), a = r.op({l}), side = r.op({a});
    r.flow.reads_group(group);
    const ValueId b = r.op({a});
    r.flow.reads_group(1);
    for (ValueId v : {side, b}) r.ledger.pack(v);
    r.ledger.settle();
    if (group == kAlwaysThere || group == 1) {
      EXPECT_THAT(ops_of(r.replay(b)), ElementsAre(0, 1, 2));
    } else {
      EXPECT_THAT(ops_of(r.replay(b)), ElementsAre(0, 2));
      EXPECT_THAT(ops_of(r.replay(side)), ElementsAre(0, 1)) << "in its turn";
    }
  }
}

}  // namespace
}  // namespace snug::plan
