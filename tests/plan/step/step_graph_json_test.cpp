#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "snug/plan/planner.h"
#include "snug/plan/step/step_graph.h"
#include "tests/plan/step/json_damage.h"

namespace snug::plan {
namespace {

using synthetic::Json;
using synthetic::message_of;
using ::testing::HasSubstr;

std::string error_of_graph(const Json& json) {
  return message_of([&] { step_graph_from_json(json); });
}

TEST(StepGraphJson, ComesBackEqualThroughText) {
  const StepGraph chain = synthetic::gpt_like({.blocks = 3});
  EXPECT_EQ(step_graph_from_json(Json::parse(to_json(chain).dump())), chain);
  EXPECT_EQ(step_graph_from_json(to_json(StepGraph{})), StepGraph{});
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StepGraph graph = synthetic::random_graph(seed, 30);
    const StepGraph loaded = step_graph_from_json(Json::parse(to_json(graph).dump()));
    ASSERT_EQ(loaded, graph);
    ASSERT_EQ(loaded.fingerprint(), graph.fingerprint());
  }
}

TEST(StepGraphJson, KeepsClockDevicesModulesStreamsAndBytesOfLeaves) {
  synthetic::GraphBuilder g(5);
  const ValueId leaf = g.leaf();
  const ValueId a = g.op("a", {leaf}, 100);
  g.save(a);
  g.settle();
  g.node({a}, 10);
  StepGraph graph = g.take();
  graph.devices = {"cpu", "cuda:1"};
  graph.values[at(leaf)].leaf_bytes = 4096;
  graph.values[at(a)].device = 1;
  graph.ops[0].module = "layers.0";
  graph.ops[0].stream = 7;
  graph.lossy = Codec::Int4;
  graph.in_flight = 4;
  graph.others_held = 123;
  graph.stages = {0, 2};
  graph.in_flight_with = {{{graph.fingerprint(), 4}, {17, 2}}, {{17, 3}}};
  for (const Codec codec : {Codec::Exponents, Codec::Int4}) {
    graph.values[at(a)].encodings.push_back({.codec = codec,
                                             .element = 4,
                                             .content_bytes = 50,
                                             .bytes = 64,
                                             .encode_seconds = 0.25,
                                             .decode_seconds = 0.125,
                                             .decode_scratch = is_lossy(codec) ? 128 : 0});
  }
  const StepGraph loaded = step_graph_from_json(Json::parse(to_json(graph).dump()));
  EXPECT_EQ(loaded, graph);
  EXPECT_EQ(loaded.ops[0].module, "layers.0");
  EXPECT_GT(loaded.events.back().seconds, 0);
}

/// As snug wrote it before it had a clock.
TEST(StepGraphJson, ReadsVersion2AndEstimatesItsClock) {
  const StepGraph graph = synthetic::gpt_like({.blocks = 2});
  Json json = to_json(graph);
  json["version"] = 2;
  json.erase("devices");
  for (Json& event : json["events"]) event.erase(4);
  for (Json& op : json["ops"]) op.erase(7), op.erase(6);
  const StepGraph loaded = step_graph_from_json(json);
  EXPECT_EQ(loaded.fingerprint(), graph.fingerprint());
  EXPECT_EQ(loaded.devices, std::vector<std::string>{"cpu"});
  double sum = 0;
  for (const Event& e : loaded.events) {
    EXPECT_EQ(e.kind == Event::Kind::Run, e.kind == Event::Kind::Run && e.seconds == loaded.ops[at(e.id)].seconds);
    sum += e.seconds;
  }
  EXPECT_NEAR(sum, loaded.step_seconds, 1e-9 * loaded.step_seconds);
  EXPECT_GT(loaded.events.back().seconds, 0) << "the backward pass has what forward does not take";
}

TEST(StepGraphJson, SaysWhatToDoWithOtherVersions) {
  Json json = to_json(synthetic::gpt_like({.blocks = 1}));
  json["version"] = 1;
  EXPECT_THAT(error_of_graph(json), HasSubstr("version 1, and this snug reads 2 to 3; record it again"));
}

TEST(StepGraph, ScalesItsClock) {
  StepGraph graph = synthetic::gpt_like({.blocks = 1});
  const double before = graph.step_seconds, first = graph.events.front().seconds;
  ASSERT_GT(first, 0);
  graph.set_step_seconds(before / 2);
  EXPECT_EQ(graph.step_seconds, before / 2);
  EXPECT_DOUBLE_EQ(graph.events.front().seconds, first / 2);
}

TEST(StepGraph, CountsOnlyWhatTheStepTakesOnTheDeviceOfThePlan) {
  synthetic::GraphBuilder g(0);
  const ValueId leaf = g.leaf();
  const ValueId a = g.op("a", {leaf}, 100);
  StepGraph graph = g.take();
  graph.values[at(leaf)].leaf_bytes = 4096;
  EXPECT_EQ(graph.step_bytes(leaf), 0) << "it was there before the step";
  EXPECT_EQ(graph.step_bytes(a), 100);
  graph.values[at(a)].device = 1;
  EXPECT_EQ(graph.step_bytes(a), 0) << "it is on another device";
}

TEST(StepGraphJson, KeepsLeavesThatOperatorsMakeOrNothingReads) {
  synthetic::GraphBuilder g(5);
  g.leaf();
  const ValueId opaque = g.op("aten::empty", {}, 100);
  g.graph().flow.make_leaf(opaque);
  g.op("aten::relu", {opaque}, 100);
  g.leaf();
  g.settle();
  const StepGraph graph = g.take();
  const StepGraph loaded = step_graph_from_json(to_json(graph));
  EXPECT_EQ(loaded, graph);
  EXPECT_TRUE(loaded.flow.is_leaf(opaque));
  EXPECT_EQ(loaded.flow.values(), 4);
}

TEST(StepGraphJson, NamesWhatIsMissing) {
  const Json whole = to_json(synthetic::gpt_like({.blocks = 1}));
  for (const auto& [key, value] : whole.items()) {
    Json json = whole;
    json.erase(key);
    EXPECT_THAT(error_of_graph(json),
                AllOf(HasSubstr("step graph: "), HasSubstr("it has no " + key), HasSubstr("record it again")));
  }
}

class DamagedStepGraph : public ::testing::Test {
 protected:
  static Json example() {
    synthetic::GraphBuilder g(5);
    const ValueId leaf = g.leaf();
    const ValueId a = g.op("a", {leaf}, 100);
    const ValueId b = g.in_place("b", {a}, a);
    g.save(b);
    g.settle();
    g.node({b}, 0);
    return to_json(g.graph());
  }
  Json json = example();
};

TEST_F(DamagedStepGraph, IsLoadedBeforeItIsDamaged) { EXPECT_EQ(error_of_graph(json), "loaded"); }

TEST_F(DamagedStepGraph, NamesAValueThatDoesNotExist) {
  json["flow"][1]["inputs"][0] = 3;
  EXPECT_THAT(error_of_graph(json),
              HasSubstr("its flow[1].inputs[0] is 3; it must be an integer, at least 0 and at most 2"));
  json["flow"][1]["inputs"][0] = -1;
  EXPECT_THAT(error_of_graph(json), HasSubstr("its flow[1].inputs[0] is -1"));
}

TEST_F(DamagedStepGraph, NamesAnOutputThatDoesNotExistWithoutMakingRoomForIt) {
  json["flow"][1]["outputs"][0][0] = 2'000'000'000;
  EXPECT_THAT(error_of_graph(json), HasSubstr("its flow[1].outputs[0][0] is 2000000000"));
}

TEST_F(DamagedStepGraph, NamesAnOutputThatIsOutOfOrder) {
  json["flow"][0]["outputs"][0][0] = 0;
  EXPECT_THAT(error_of_graph(json),
              HasSubstr("its flow[0].outputs[0][0] is 0; it must be 1, as values are numbered in order"));
}

TEST_F(DamagedStepGraph, NamesAnOverwrittenValueThatIsNotThereBefore) {
  for (const int wrong : {2, 3, 1000, -2}) {
    json["flow"][1]["outputs"][0][1] = wrong;
    EXPECT_THAT(error_of_graph(json), HasSubstr("its flow[1].outputs[0][1] is " + std::to_string(wrong)));
  }
}

TEST_F(DamagedStepGraph, NamesALeafThatDoesNotExist) {
  json["leaves"] = Json::array({0, 7});
  EXPECT_THAT(error_of_graph(json), HasSubstr("its leaves[1] is 7"));
}

TEST_F(DamagedStepGraph, NamesCountsThatDiffer) {
  json["ops"].erase(0);
  EXPECT_THAT(error_of_graph(json), HasSubstr("2 operators in \"flow\" but 1 in \"ops\""));
}

TEST_F(DamagedStepGraph, NamesAnEventThatIsOutOfRange) {
  const Json whole = json;
  for (const char* event :
       {"[0,2,0,0,0.0]", "[0,-1,0,0,0.0]", "[2,3,0,0,0.0]", "[7,0,0,0,0.0]", "[-1,0,0,0,0.0]", "[256,0,0,0,0.0]"}) {
    json = whole;
    json["events"].push_back(Json::parse(event));
    EXPECT_THAT(error_of_graph(json), AllOf(HasSubstr(fmt::format("its events[{}][", json["events"].size() - 1)),
                                            HasSubstr("it must be an integer, at least 0 and at most")));
  }
}

TEST_F(DamagedStepGraph, NamesWhatNoStepDoes) {
  const auto refusal = [](const std::function<void(Json&)>& change) {
    Json changed = example();
    change(changed);
    return error_of_graph(changed);
  };
  const auto events = [&](const char* text) { return refusal([&](Json& j) { j["events"] = Json::parse(text); }); };
  EXPECT_THAT(events("[]"), HasSubstr("0 of 2 operators run"));
  EXPECT_THAT(events("[[0,0,0,0,0.0],[3,-1,0,0,0.0]]"), HasSubstr("1 of 2 operators run, and the forward pass ends"));
  EXPECT_THAT(events("[[0,0,0,0,0.0],[0,1,0,0,0.0],[4,2,0,0,0.0]]"), HasSubstr("the forward pass does not end"));
  EXPECT_THAT(events("[[0,1,0,0,0.0]]"), HasSubstr("operator 1 runs out of order"));
  EXPECT_THAT(events("[[0,0,0,0,0.0],[0,0,0,0,0.0]]"), HasSubstr("operator 0 runs out of order"));
  EXPECT_THAT(events("[[0,0,0,0,0.0],[3,-1,0,0,0.0],[0,1,0,0,0.0]]"), HasSubstr("operator 1 runs out of order"));
  EXPECT_THAT(events("[[0,0,0,0,0.0],[0,1,0,0,0.0],[3,-1,0,0,0.0],[3,-1,0,0,0.0]]"),
              HasSubstr("the forward pass ends twice"));
  EXPECT_THAT(refusal([](Json& j) { j["ops"][1][2] = -1.0; }), HasSubstr("operator 1 takes -1 s"));
  EXPECT_THAT(refusal([](Json& j) { j["ops"][1][3] = -5; }), HasSubstr("and -5 bytes"));
  EXPECT_THAT(refusal([](Json& j) { j["values"][1][0] = -8; }), HasSubstr("value 1 has -8 bytes"));
  EXPECT_THAT(refusal([](Json& j) { j["static_bytes"] = 2'000'000'000'000'000'000; }),
              HasSubstr("2e+18 bytes; planners count up to 2^53"));
  EXPECT_THAT(refusal([](Json& j) {
                j["values"][1] = {8, true, "", 0, 0, Json::array({"bits", 4, 1, 9'100'000'000'000'000, 0.1, 0.1})};
              }),
              HasSubstr("planners count up to"));
  EXPECT_THAT(refusal([](Json& j) {
                j["host"] = {{"out_seconds_per_byte", 0.1},
                             {"in_seconds_per_byte", 0.1},
                             {"seconds_per_copy", 0.1},
                             {"budget", 9'100'000'000'000'000'000}};
              }),
              HasSubstr("its host.budget is 9100000000000000000; it must be"));
  EXPECT_THAT(refusal([](Json& j) { j["events"].back()[3] = -9'000'000'000'000'000'000; }), HasSubstr("up to"));
  EXPECT_THAT(refusal([](Json& j) { j["ops"][1][2] = 1e300; }), HasSubstr("operator 1 takes 1e+300 s"));
  EXPECT_THAT(refusal([](Json& j) { j["events"][0][4] = 1e300; }), HasSubstr("an event takes 1e+300 s"));
  EXPECT_THAT(refusal([](Json& j) { j["step_seconds"] = 1e300; }), HasSubstr("its step_seconds is 1e+300; it must be"));
  EXPECT_THAT(refusal([](Json& j) { j["step_seconds"] = -1; }), HasSubstr("its step_seconds is -1; it must be"));
  for (const char* key : {"static_bytes", "update_bytes", "update_seconds"}) {
    EXPECT_THAT(refusal([&](Json& j) { j[key] = -5; }), HasSubstr("is -5; it must be"));
  }
  EXPECT_THAT(refusal([](Json& j) { j["static_by_tag"][0] = -5; }),
              HasSubstr("its static_by_tag[0] is -5; it must be"));
}

TEST_F(DamagedStepGraph, RefusesOtherFormatsAndVersions) {
  json["version"] = 1;
  EXPECT_THAT(error_of_graph(json), HasSubstr("version 1, and this snug reads 2 to 3"));
  EXPECT_THAT(error_of_graph(Json::array()), HasSubstr("step graph: it is []; it must be an object"));
}

TEST_F(DamagedStepGraph, IsRefusedOrIsAGraph) {
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    synthetic::Dice dice(seed);
    Json damaged = json;
    synthetic::damage(damaged, dice);
    const std::string message = message_of([&] {
      const StepGraph graph = step_graph_from_json(damaged);
      ASSERT_EQ(graph.values.size(), static_cast<std::size_t>(graph.flow.values()));
      ASSERT_EQ(graph.ops.size(), static_cast<std::size_t>(graph.flow.ops()));
      (void)Planner(graph, "optimal", {.simulated_ops = 0}).floor(graph);
    });
    refused += message != "loaded";
  }
  EXPECT_GT(refused, 1500);
}

TEST(StepGraphJson, KeepsGroupsOfLeaves) {
  StepGraph graph;
  const ValueId leaf = graph.flow.add_leaf();
  for (const GroupId group : {3, kAlwaysThere, kSeveralGroups}) {
    graph.flow.add_op(std::vector{leaf}, kRootSegment);
    graph.flow.reads_group(group);
    graph.flow.add_output();
    graph.ops.push_back({.name = "aten::mm"});
    graph.events.push_back({Event::Kind::Run, graph.flow.ops() - 1});
  }
  graph.events.push_back({Event::Kind::Settle, -1});
  graph.values.resize(at(graph.flow.values()));
  const StepGraph loaded = step_graph_from_json(Json::parse(to_json(graph).dump()));
  EXPECT_EQ(loaded, graph);
  EXPECT_EQ(loaded.flow.group(0), 3);
  EXPECT_EQ(loaded.flow.group(2), kSeveralGroups);
}

}  // namespace
}  // namespace snug::plan
