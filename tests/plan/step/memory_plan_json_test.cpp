#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "snug/plan/run/presets.h"
#include "snug/plan/step/memory_plan.h"
#include "tests/plan/step/json_damage.h"

namespace snug::plan {
namespace {

using synthetic::Json;
using synthetic::message_of;
using ::testing::HasSubstr;

MemoryPlan example() {
  MemoryPlan plan;
  plan.strategy = "every_block";
  plan.fingerprint = std::numeric_limits<std::uint64_t>::max() - 1;
  plan.actions = {kKeep, kRecompute, kMove, kKeep};
  plan.segments = {{0, 2}, {2, 4}};
  plan.budget = 8_GiB;
  plan.predicted_peak = 8_GiB - 1;
  plan.unplanned_peak = 40_GiB;
  plan.predicted_seconds = 0.1 + 0.2;
  plan.unplanned_seconds = 1.0 / 3;
  return plan;
}

std::string error_of_plan(const Json& json) {
  return message_of([&] { memory_plan_from_json(json); });
}

TEST(MemoryPlanJson, ComesBackEqualThroughText) {
  const MemoryPlan plan = example();
  EXPECT_EQ(memory_plan_from_json(Json::parse(to_json(plan).dump())), plan);
  EXPECT_EQ(memory_plan_from_json(to_json(MemoryPlan{})), MemoryPlan{});
  const StepGraph graph = synthetic::gpt_like({.blocks = 5});
  EXPECT_EQ(memory_plan_from_json(Json::parse(to_json(plan_chen_sqrt(graph)).dump(2))), plan_chen_sqrt(graph));
}

TEST(MemoryPlanJson, WritesOneLetterAValue) {
  const Json json = to_json(example());
  EXPECT_EQ(json.at("actions"), "krmk");
  EXPECT_EQ(json.at("segments").dump(), "[[0,2],[2,4]]");
  EXPECT_EQ(json.at("fingerprint"), 18446744073709551614ULL);
}

TEST(MemoryPlanJson, NamesWhatIsMissing) {
  const Json whole = to_json(example());
  for (const auto& [key, value] : whole.items()) {
    Json json = whole;
    json.erase(key);
    EXPECT_THAT(error_of_plan(json),
                AllOf(HasSubstr("memory plan: "), HasSubstr("it has no " + key), HasSubstr("make it again")));
  }
}

TEST(MemoryPlanJson, RefusesOtherFormatsVersionsActionsAndRanges) {
  const auto with = [](const std::string& key, const Json& value) {
    Json json = to_json(example());
    json[key] = value;
    return error_of_plan(json);
  };
  EXPECT_THAT(with("format", "snug step graph"),
              HasSubstr("its format is \"snug step graph\"; it must be \"snug memory plan\""));
  EXPECT_THAT(with("version", 1), HasSubstr("it is of version 1, and this snug reads 2; make it again"));
  EXPECT_THAT(with("actions", "kxr"), HasSubstr("its actions is \"kxr\"; it must be a letter for each value"));
  for (const char* key : {"budget_bytes", "predicted_peak_bytes", "unplanned_peak_bytes", "predicted_step_seconds",
                          "unplanned_step_seconds"}) {
    EXPECT_THAT(with(key, -5), HasSubstr(std::string("its ") + key + " is -5; it must be"));
  }
  EXPECT_THAT(with("actions", 5), HasSubstr("its actions is 5; it must be text"));
  EXPECT_THAT(with("segments", Json::parse("[[3,2]]")),
              HasSubstr("its segments[0][1] is 2; it must be an integer, at least 3"));
  EXPECT_THAT(with("segments", Json::parse("[[-1,2]]")),
              HasSubstr("its segments[0][0] is -1; it must be an integer, at least 0"));
  EXPECT_THAT(with("segments", Json::parse("[[1]]")),
              HasSubstr("its segments[0] is [1]; it must be an array of 2 or more"));
  EXPECT_THAT(with("budget_bytes", 9'100'000'000'000'000),
              HasSubstr("its budget_bytes is 9100000000000000; it must be"));
  EXPECT_THAT(error_of_plan(Json::array()), HasSubstr("memory plan: it is []; it must be an object"));
  EXPECT_THAT(error_of_plan(Json()), HasSubstr("memory plan: it is null; it must be an object"));
}

TEST(MemoryPlanJson, RefusesToFetchValuesThatThePlanDoesNotHave) {
  MemoryPlan plan = example();
  plan.staging = {.leaving = 1, .arriving = 1, .first = 0, .order = {2, 4}};
  EXPECT_THAT(error_of_plan(to_json(plan)),
              HasSubstr("its staging.fetch_order[1] is 4; it must be an integer, at least 0 and at most 3"));
  plan.staging.order = {2, 3};
  EXPECT_EQ(memory_plan_from_json(to_json(plan)), plan);
}

TEST(MemoryPlanJson, RefusesDamageOrLoadsAPlan) {
  const Json whole = to_json(example());
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    synthetic::Dice dice(seed);
    Json json = whole;
    synthetic::damage(json, dice);
    refused += error_of_plan(json) != "loaded";
  }
  EXPECT_GT(refused, 1000);
}

TEST(MemoryPlan, KeepsOnlyValuesThatItKnows) {
  const MemoryPlan plan = example();
  EXPECT_TRUE(plan.keeps(0));
  EXPECT_FALSE(plan.keeps(1));
  EXPECT_FALSE(plan.keeps(4));
  EXPECT_FALSE(plan.keeps(kNoValue));
}

}  // namespace
}  // namespace snug::plan
