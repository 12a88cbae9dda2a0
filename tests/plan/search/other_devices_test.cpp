// Values on another device than plans are for take none of its memory, so the searches look at them no more than at
// values without bytes.
#include <gtest/gtest.h>

#include "snug/plan/run/presets.h"
#include "snug/plan/search/annealing.h"
#include "snug/plan/search/chain.h"
#include "snug/plan/search/descent.h"
#include "snug/plan/search/front.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

class OtherDevices : public ::testing::Test {
 protected:
  OtherDevices() {
    elsewhere.devices = {"cuda:0", "cpu"};
    nothing.devices = elsewhere.devices;
    for (ValueId v = 0; v < elsewhere.flow.values(); v += 3) {
      elsewhere.values[at(v)].device = 1;
      nothing.values[at(v)].device = 1;
      nothing.values[at(v)].bytes = 0;
    }
    front = front_of(all_presets(elsewhere));
  }
  StepGraph elsewhere = synthetic::residual_net(), nothing = elsewhere;
  std::vector<MemoryPlan> front;
};

TEST_F(OtherDevices, TakeNothingInPresets) {
  ASSERT_GT(front.size(), 2U);
  EXPECT_EQ(front, front_of(all_presets(nothing)));
}

TEST_F(OtherDevices, AreNotFilledInBetweenPlans) {
  EXPECT_EQ(with_gaps_filled(elsewhere, front, {100'000}), with_gaps_filled(nothing, front, {100'000}));
}

TEST_F(OtherDevices, AreNotChangedOneByOne) {
  EXPECT_EQ(with_actions_changed(elsewhere, front, {100'000}), with_actions_changed(nothing, front, {100'000}));
}

TEST_F(OtherDevices, AreNotDroppedInDescents) {
  EXPECT_EQ(descending_plans(elsewhere, front, 48, {500'000}), descending_plans(nothing, front, 48, {500'000}));
}

TEST_F(OtherDevices, AreNotChangedAtRandom) {
  EXPECT_EQ(with_annealing(elsewhere, front, {100'000}), with_annealing(nothing, front, {100'000}));
}

TEST_F(OtherDevices, AreNotWeighedInPieces) {
  const Chain chain = make_chain(elsewhere, 16), expected = make_chain(nothing, 16);
  ASSERT_EQ(chain.pieces.size(), expected.pieces.size());
  for (std::size_t i = 0; i < chain.pieces.size(); ++i) {
    EXPECT_EQ(chain.pieces[i].begin, expected.pieces[i].begin);
    EXPECT_EQ(chain.pieces[i].nothing_kept.kept, expected.pieces[i].nothing_kept.kept);
    ASSERT_EQ(chain.pieces[i].options.size(), expected.pieces[i].options.size());
    for (std::size_t k = 0; k < chain.pieces[i].options.size(); ++k)
      EXPECT_EQ(chain.pieces[i].options[k].kept, expected.pieces[i].options[k].kept);
  }
}

}  // namespace
}  // namespace snug::plan
