// What open regions say of the values that are made in them, and what leaves one.
#include "snug/record/region_stack.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace snug::record {
namespace {

using plan::ValueId;

class Regions : public ::testing::Test {
 protected:
  /// What an operator makes in the innermost region.
  ValueId make() {
    flow.add_op({}, regions.segment());
    return flow.add_output();
  }
  [[nodiscard]] bool keeps(ValueId value, plan::Must must = plan::Must::Nothing) const {
    return regions.keeps_when_saved(flow, value, must);
  }

  plan::Dataflow flow;
  RegionStack regions;
  const OperatorTraits& relu = traits_of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::relu", ""));
  const OperatorTraits& sin = traits_of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::sin", ""));
};

TEST_F(Regions, OutsideOfAllWhatIsSavedIsKept) {
  const ValueId value = make();
  EXPECT_TRUE(keeps(value));
  EXPECT_FALSE(regions.escapes(flow, value));
  EXPECT_FALSE(keeps(value, plan::Must::Recompute));
}

TEST_F(Regions, TheInnermostOneDecides) {
  regions.open(flow, {.recompute = true});
  EXPECT_FALSE(keeps(make()));
  regions.open(flow, {.recompute = false});
  EXPECT_TRUE(keeps(make()));
  regions.close();
  EXPECT_FALSE(keeps(make()));
  regions.close();
  EXPECT_TRUE(keeps(make()));
}

TEST_F(Regions, AValueThatLeavesOneThatDropsItEscapes) {
  regions.open(flow, {.recompute = true});
  const ValueId inside = make();
  EXPECT_FALSE(regions.escapes(flow, inside));
  regions.close();
  EXPECT_TRUE(regions.escapes(flow, inside));
  EXPECT_TRUE(keeps(inside));
}

TEST_F(Regions, AValueThatIsReadInOneThatDropsEscapesIntoIt) {
  const ValueId outside = make();
  regions.open(flow, {.recompute = true});
  EXPECT_TRUE(regions.escapes(flow, outside));
}

TEST_F(Regions, WhatAnEnclosingOneMakesAgainDoesNotEscape) {
  regions.open(flow, {.recompute = true});
  regions.open(flow, {.recompute = true});
  const ValueId inner = make();
  regions.close();
  EXPECT_FALSE(regions.escapes(flow, inner));
  regions.close();
  EXPECT_TRUE(regions.escapes(flow, inner));
}

TEST_F(Regions, LeavesDoNotEscape) {
  const ValueId leaf = flow.add_leaf();
  regions.open(flow, {.recompute = true});
  EXPECT_FALSE(regions.escapes(flow, leaf));
}

TEST_F(Regions, ThePolicyIsAskedForEachOperatorWithHowManyCameBefore) {
  std::vector<std::pair<std::string, std::int64_t>> asked;
  regions.open(flow, {.recompute = true, .policy = [&](const OperatorContext& context) {
                        asked.emplace_back(context.name, context.invocation);
                        return context.name == "aten::sin" ? Choice::MustKeep : Choice::MustRecompute;
                      }});
  EXPECT_EQ(regions.ask(relu).must, plan::Must::Recompute);
  EXPECT_EQ(regions.ask(sin).must, plan::Must::Keep);
  EXPECT_EQ(regions.ask(relu).must, plan::Must::Recompute);
  using Asked = std::pair<std::string, std::int64_t>;
  EXPECT_EQ(asked, (std::vector<Asked>{{"aten::relu", 0}, {"aten::sin", 0}, {"aten::relu", 1}}));
  regions.close();
  EXPECT_EQ(regions.ask(relu).must, plan::Must::Nothing);
  EXPECT_EQ(asked.size(), 3U);
}

TEST_F(Regions, WhatIsPreferredIsAnAction) {
  const auto preferred = [&](Choice choice) {
    regions.open(flow, {.policy = [choice](const OperatorContext&) { return choice; }, .min_offload = 100});
    const plan::Action action = regions.ask(relu).preferred;
    regions.close();
    return action;
  };
  EXPECT_EQ(preferred(Choice::PreferKeep), plan::kKeep);
  EXPECT_EQ(preferred(Choice::PreferRecompute), plan::kRecompute);
  EXPECT_EQ(preferred(Choice::Offload), plan::kMove);
  regions.open(flow, {.min_offload = 100});
  EXPECT_FALSE(regions.moves(99));
  EXPECT_TRUE(regions.moves(100));
}

TEST_F(Regions, InAPlannedStepOpenNoSegment) {
  regions.open_in_plan({.recompute = true});
  EXPECT_EQ(regions.segment(), plan::kRootSegment);
  EXPECT_EQ(flow.segments(), 1);
  EXPECT_TRUE(keeps(make()));
  const plan::SegmentId planned = flow.open_segment(plan::kRootSegment);
  regions.add_planned_segments(flow.segments());
  flow.add_op({}, planned);
  EXPECT_TRUE(keeps(flow.add_output())) << "a plan's segment is nobody's region";
}

}  // namespace
}  // namespace snug::record
