#include "snug/plan/bound/unavoidable.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

using synthetic::GraphBuilder;
using ::testing::ElementsAre;

TEST(UnavoidableBytes, CountWhatAnOperatorTakesAndWhatTheProgramRefersTo) {
  GraphBuilder b(100);
  const ValueId l = b.leaf();
  const ValueId a = b.op("a", {l}, 10, 1, /*workspace=*/5);
  b.graph().ops[0].other_bytes = 2;
  b.save(a);
  const ValueId c = b.in_place("c", {a}, a);
  b.die(c);
  b.settle();
  // 100 there before, 10 + 5 while it runs; then the result and 2 that stay. What is overwritten changes hands.
  EXPECT_THAT(unavoidable_bytes(b.graph()), ElementsAre(115, 112, 112, 112, 102));
}

TEST(UnavoidableBytes, CountWhatANodeHasUnpackedOnceUntilItIsDone) {
  GraphBuilder b(100);
  const ValueId l = b.leaf(), a = b.op("a", {l}, 10);
  b.save(a);
  b.save(a);
  b.die(a);
  b.settle();
  b.unpack(a);
  b.unpack(a);
  b.release(a);
  b.release(a);
  EXPECT_THAT(unavoidable_bytes(b.graph()), ElementsAre(110, 110, 110, 110, 100, 110, 110, 110, 100));
}

TEST(UnavoidableBytes, CountOnceWhatTheProgramAndANodeHave) {
  GraphBuilder b;
  const ValueId l = b.leaf(), a = b.op("a", {l}, 10);
  b.save(a);
  b.unpack(a);
  b.die(a);
  b.settle();
  b.release(a);
  b.settle();
  EXPECT_THAT(unavoidable_bytes(b.graph()), ElementsAre(10, 10, 10, 10, 10, 10, 0));
}

TEST(UnavoidableBytes, FollowOtherMemoryAsItComesAndGoes) {
  GraphBuilder b(100);
  b.other(7, 3);
  b.other(1, 0);
  b.other(0, -3);
  b.settle();
  EXPECT_THAT(unavoidable_bytes(b.graph()), ElementsAre(107, 104, 103, 100));
}

TEST(UnavoidableBytes, KeepCountingAResultThatCannotBeMadeAgain) {
  GraphBuilder b;
  const ValueId l = b.leaf(), a = b.op("a", {l}, 10), c = b.op("c", {l}, 20);
  b.graph().flow.make_leaf(a);
  b.die(a);
  b.die(c);
  b.settle();
  EXPECT_THAT(unavoidable_bytes(b.graph()), ElementsAre(10, 30, 30, 30, 10));
}

}  // namespace
}  // namespace snug::plan
