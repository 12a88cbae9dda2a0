// Evictions and releases while replays are under way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "tests/plan/run/books.h"

namespace snug::plan {
namespace {

using synthetic::Books;
using synthetic::ops_of;
using synthetic::Row;
using synthetic::run_at;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(LedgerUnderWay, AReplayThatIsCutShortLeavesNothingPinned) {
  Row r;
  r.ledger.pack(r.c);
  r.ledger.settle(Leaves::Stay);
  const ReplaySchedule replay = r.ledger.schedule(r.c);
  const ReplaySchedule other = r.ledger.schedule(r.c);  // of another thread
  r.ledger.pin(other);
  r.ledger.pin(replay);
  for (std::size_t i = 0; i < 2; ++i) {
    const RunAgain& run = run_at(replay, i);
    ASSERT_TRUE(r.ledger.begin(run));
    r.ledger.cache(r.flow.outputs(run.op)[0].value);
    r.ledger.end(run);
    r.ledger.finish(run);
  }
  EXPECT_FALSE(r.ledger.evictable(r.b, Resort::Last)) << "the next step reads it";
  r.ledger.cache(r.a);
  r.ledger.finish(run_at(other, 0));  // the other one made a again, and still reads it
  r.ledger.unpin(replay, 2);
  EXPECT_FALSE(r.ledger.evictable(r.a, Resort::Last));
}

TEST(LedgerUnderWay, GivesUpASourceOfARunningReplayOnlyInNeedAndTheStepTells) {
  Row r;
  for (ValueId v : {r.a, r.c}) r.ledger.pack(v);
  r.ledger.hold(r.a);
  r.ledger.settle(Leaves::Stay);
  const ReplaySchedule replay = r.ledger.schedule(r.c);
  EXPECT_THAT(ops_of(replay), ElementsAre(1, 2));
  r.ledger.pin(replay);
  EXPECT_FALSE(r.ledger.evictable(r.a));
  EXPECT_TRUE(r.ledger.evictable(r.a, Resort::Last));
  ASSERT_TRUE(r.ledger.begin(run_at(replay, 0)));
  EXPECT_FALSE(r.ledger.evictable(r.a, Resort::Last));  // the operator that reads it runs
  r.ledger.end(run_at(replay, 0));
  r.ledger.evict(r.a);
  EXPECT_FALSE(r.ledger.begin(run_at(replay, 0)));
  r.ledger.unpin(replay, 0);
  // The rest is scheduled anew, from what is left.
  EXPECT_THAT(ops_of(r.ledger.schedule(r.c)), ElementsAre(0, 1, 2));
}

TEST(LedgerUnderWay, BringsAnEvictedValueBackFromWhatIsLeft) {
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
  r.ledger.release(r.a, Unpacked::Not);  // c's replay reads it
  EXPECT_TRUE(r.ledger.held(r.a));
  EXPECT_THAT(ops_of(r.replay(r.c)), ElementsAre(1, 2));
  r.ledger.consume(r.c);
  r.ledger.release(r.c, Unpacked::Now);
  EXPECT_FALSE(r.ledger.resident(r.a));
}

TEST(LedgerUnderWay, DropsWhatIsReleasedWhileTheOperatorRunsThatMakesIt) {
  Books r;
  const ValueId l = r.leaf();
  r.flow.add_op(std::vector{l}, kRootSegment);
  const ValueId a = r.flow.add_output(), b = r.flow.add_output();
  r.ledger.pack(a);
  r.ledger.pack(b);
  r.ledger.settle(Leaves::Stay);
  const ReplaySchedule replay = r.ledger.schedule(a);
  EXPECT_THAT(run_at(replay, 0).drops, IsEmpty()) << "b is waited for";
  r.ledger.pin(replay);
  ASSERT_TRUE(r.ledger.begin(run_at(replay, 0)));
  r.ledger.release(b, Unpacked::Not);
  for (ValueId v : {a, b}) r.ledger.cache(v);
  r.ledger.finish(run_at(replay, 0));
  r.ledger.end(run_at(replay, 0));
  EXPECT_THAT(r.take_dropped(), ElementsAre(b));
  r.ledger.unpin(replay, 1);
  EXPECT_TRUE(r.ledger.cached(a));
}

TEST(LedgerUnderWay, DropsWhatIsReleasedWhileAReplayPinsItWhenThatIsOver) {
  for (const std::size_t finished : {1U, 2U}) {
    SCOPED_TRACE(finished);
    Row r;
    for (ValueId v : {r.a, r.b}) r.ledger.pack(v);
    r.ledger.settle(Leaves::Stay);
    const ReplaySchedule replay = r.ledger.schedule(r.b);
    r.ledger.pin(replay);
    for (std::size_t i = 0; i < finished; ++i) {
      const RunAgain& run = run_at(replay, i);
      ASSERT_TRUE(r.ledger.begin(run));
      if (i + 1 == finished) {
        r.ledger.release(r.a, Unpacked::Not);
        r.ledger.release(r.b, Unpacked::Not);
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

TEST(LedgerUnderWay, ProtectsTheSourcesOfARunningReplay) {
  Row r;
  r.ledger.hold(r.a);
  r.ledger.pack(r.a);
  r.ledger.pack(r.c);
  r.ledger.settle();
  const ReplaySchedule replay = r.ledger.schedule(r.c);
  r.ledger.pin(replay);
  EXPECT_FALSE(r.ledger.evictable(r.a));
  r.ledger.release(r.a, Unpacked::Not);
  r.ledger.release(r.c, Unpacked::Not);
  EXPECT_TRUE(r.ledger.held(r.a));
  r.ledger.unpin(replay, 0);
  EXPECT_FALSE(r.ledger.resident(r.a));
}

}  // namespace
}  // namespace snug::plan
