// Which rises of a version counter are writes that nobody has seen.
#include "snug/record/version_tracker.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace snug::record {
namespace {

class Versions : public ::testing::Test {
 protected:
  Versions() { versions.set(0, SeenVersion(t)); }

  torch::NoGradGuard no_grad;
  at::Tensor t = torch::zeros({4});
  at::Tensor alias = t.variable_data();  // another counter over the same storage, as `.data` has it
  VersionTracker versions;
};

TEST_F(Versions, ARiseIsAWrite) {
  EXPECT_FALSE(versions.raised(0));
  t.add_(1);
  EXPECT_TRUE(versions.raised(0));
  versions.look_again(0);
  EXPECT_FALSE(versions.raised(0));
}

TEST_F(Versions, OneThatIsExpectedIsSettledAndNoFurtherOne) {
  versions.expect(0, SeenVersion(t));
  t.add_(1);
  versions.settle();
  EXPECT_FALSE(versions.raised(0));
  t.add_(1);
  versions.settle();
  EXPECT_TRUE(versions.raised(0)) << "it was expected once";
}

TEST_F(Versions, TwoAtOnceAreMoreThanTheOneExpected) {
  versions.expect(0, SeenVersion(t));
  t.add_(1).add_(1);
  versions.settle();
  EXPECT_TRUE(versions.raised(0));
}

TEST_F(Versions, AnOperatorThatWritesTwiceThroughACounterRaisesItTwice) {
  versions.expect(0, SeenVersion(t));
  versions.expect(0, SeenVersion(t));
  t.add_(1).add_(1);
  versions.settle();
  EXPECT_FALSE(versions.raised(0));
}

TEST_F(Versions, WhatRoseInsideOfTheKernelIsNotExpectedAgain) {
  const SeenVersion before(t);
  t.add_(1);  // the kernel calls it
  versions.set(1, SeenVersion(t));
  versions.expect(1, before);
  t.add_(1);
  versions.settle();
  EXPECT_TRUE(versions.raised(1));
}

TEST_F(Versions, AnotherCounterOfTheStorageTellsOfWritesToo) {
  EXPECT_EQ(versions.find(0, SeenVersion(alias)), nullptr);
  alias.add_(1);
  EXPECT_FALSE(versions.raised(0)) << "not known yet";
  versions.add(0, SeenVersion(alias));
  EXPECT_NE(versions.find(0, SeenVersion(alias)), nullptr);
  EXPECT_FALSE(versions.raised(0)) << "as it stood when it was added";
  alias.add_(1);
  EXPECT_TRUE(versions.raised(0));
  versions.look_again(0);
  EXPECT_FALSE(versions.raised(0));
}

TEST_F(Versions, TheNextValueOfAStorageInheritsItsCountersAsTheyStand) {
  versions.add(0, SeenVersion(alias));
  t.add_(1);
  alias.add_(1);
  versions.set(1, SeenVersion(t));
  versions.inherit(1, 0);
  EXPECT_FALSE(versions.raised(1));
  alias.add_(1);
  EXPECT_TRUE(versions.raised(1));
}

TEST_F(Versions, ACounterThatIsReplacedGoesOnCounting) {
  versions.replace(0, SeenVersion(alias));
  EXPECT_TRUE(versions.of(0).same_counter(SeenVersion(alias)));
  t.add_(1);
  EXPECT_TRUE(versions.raised(0));
}

TEST_F(Versions, RaisesBeforeTheCallAreExcusedAsOftenAsTheyAreCounted) {
  std::vector<CountedRaise> raised;
  count_raise(raised, 0, SeenVersion(t));
  count_raise(raised, 0, SeenVersion(t));
  ASSERT_EQ(raised.size(), 1U);
  EXPECT_EQ(raised[0].raises, 2U);
  t.add_(1).add_(1);
  versions.excuse(raised);
  EXPECT_FALSE(versions.raised(0));
  t.add_(1).add_(1).add_(1);
  versions.excuse(raised);
  EXPECT_TRUE(versions.raised(0));
}

}  // namespace
}  // namespace snug::record
