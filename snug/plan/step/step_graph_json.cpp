// A step graph as JSON, and back.
#include "snug/plan/step/step_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "snug/base/json_field.h"
#include "snug/plan/step/together.h"

namespace snug::plan {
namespace {

constexpr std::int32_t kMostInFlight = 1 << 20;
/// The largest sum_of_bytes(): searches multiply sums by up to 24 before they divide, which has to fit into 63 bits.
constexpr double kMostBytes = 0x1p53;
/// A time, or seconds per byte: 30,000 years, so that sums and products of them stay finite.
constexpr Range kSeconds{.low = 0, .high = 1e12};
constexpr int kGraphVersion = 3, kOldestGraphVersion = 2;  // 2 had no clock, no bytes of leaves, no devices
constexpr const char* kGraphFormat = "snug step graph";

using Json = nlohmann::ordered_json;

Json flow_to_json(const Dataflow& flow) {
  Json ops = Json::array();
  for (OpId op = 0; op < flow.ops(); ++op) {
    Json outputs = Json::array();
    for (const Output& out : flow.outputs(op)) outputs.push_back({out.value, out.overwrites});
    ops.push_back({{"inputs", flow.inputs(op)}, {"outputs", outputs}});
    if (flow.group(op) != kAlwaysThere) ops.back()["group"] = flow.group(op);
  }
  return ops;
}

ValueId value_from(const JsonField& field, ValueId values) {
  return field.as<ValueId>({.low = 0, .high = static_cast<double>(values) - 1});
}

/// Values are numbered as they were first seen, so leaves are those that no operator makes.
Dataflow flow_from(const JsonField& ops, const JsonField& leaves, const std::vector<OpInfo>& infos, ValueId values) {
  Dataflow flow;
  std::vector<char> is_leaf(static_cast<std::size_t>(values), 0);
  for (const JsonField& leaf : leaves.items()) is_leaf[static_cast<std::size_t>(value_from(leaf, values))] = 1;
  const auto add_leaves_up_to = [&](ValueId next) {
    while (flow.values() < next) flow.add_leaf();
  };
  for (const JsonField& op : ops.items()) {
    std::vector<ValueId> inputs;
    for (const JsonField& input : op.at("inputs").items()) {
      inputs.push_back(value_from(input, values));
      add_leaves_up_to(inputs.back() + 1);
    }
    const std::vector<JsonField> outputs = op.at("outputs").items();
    if (!outputs.empty()) add_leaves_up_to(value_from(outputs.front().at(0), values));
    flow.add_op(inputs, kRootSegment, runs_of(at(flow.ops()) < infos.size() ? infos[at(flow.ops())].name : ""));
    flow.reads_group(op.optional<GroupId>("group", kAlwaysThere, {.low = kSeveralGroups}));
    for (const JsonField& out : outputs) {
      const ValueId v = value_from(out.at(0), values);
      if (v != flow.values()) out.at(0).refuse(fmt::format("{}, as values are numbered in order", flow.values()));
      flow.add_output(out.at(1).as<ValueId>({.low = kNoValue, .high = static_cast<double>(v) - 1}));
      if (is_leaf[static_cast<std::size_t>(v)]) flow.make_leaf(v);
    }
  }
  add_leaves_up_to(values);
  return flow;
}

constexpr std::array<std::pair<std::string_view, Must>, 3> kMusts{
    {{"", Must::Nothing}, {"keep", Must::Keep}, {"recompute", Must::Recompute}}};

std::string word_of(Must must) {
  return std::string(std::ranges::find(kMusts, must, &std::pair<std::string_view, Must>::second)->first);
}

constexpr std::array<std::pair<std::string_view, Codec>, kCodecs - 1> kCodecWords{{{"zeros", Codec::Zeros},
                                                                                   {"bits", Codec::Bits},
                                                                                   {"narrow", Codec::Narrow},
                                                                                   {"exponents", Codec::Exponents},
                                                                                   {"bf16", Codec::BFloat16},
                                                                                   {"fp8", Codec::Float8},
                                                                                   {"int8", Codec::Int8},
                                                                                   {"int4", Codec::Int4}}};

std::string word_of(Codec codec) {
  return std::string(std::ranges::find(kCodecWords, codec, &std::pair<std::string_view, Codec>::second)->first);
}

Json to_json(const Encoding& encoding) {
  Json json = {word_of(encoding.codec), encoding.element,        encoding.content_bytes,
               encoding.bytes,          encoding.encode_seconds, encoding.decode_seconds};
  if (encoding.encode_scratch != 0 || encoding.decode_scratch != 0)
    json.insert(json.end(), {encoding.encode_scratch, encoding.decode_scratch});
  return json;
}

Encoding encoding_from(const JsonField& json) {
  const auto scratch = [&](std::size_t i) { return json.size() > i ? json.at(i).as<Bytes>(kNotNegative) : 0; };
  return {.codec = json.at(0).one_of(kCodecWords),
          .element = json.at(1).as<std::int32_t>({.low = 1, .high = 8}),
          .content_bytes = json.at(2).as<Bytes>(kNotNegative),
          .bytes = json.at(3).as<Bytes>(kNotNegative),
          .encode_seconds = json.at(4).as<double>(kSeconds),
          .decode_seconds = json.at(5).as<double>(kSeconds),
          .encode_scratch = scratch(6),
          .decode_scratch = scratch(7)};
}

OpInfo op_from(const JsonField& op) {
  OpInfo info{op.at(0).as<std::string>(), op.at(1).as<std::uint64_t>(), op.at(2).as<double>(), op.at(3).as<Bytes>(),
              op.at(4).as<Bytes>()};
  if (op.size() > 5) info.inputs = op.at(5).as<std::string>();
  if (op.size() > 6) info.module = op.at(6).as<std::string>();
  if (op.size() > 7) info.stream = op.at(7).as<std::int64_t>();
  return info;
}

ValueInfo value_info_from(const JsonField& value) {
  ValueInfo info{value.at(0).as<Bytes>(), value.at(1).as<bool>()};
  if (value.size() > 2) info.must = value.at(2).one_of(kMusts);
  if (value.size() > 3) info.device = value.at(3).as<std::int32_t>();
  if (value.size() > 4) info.leaf_bytes = value.at(4).as<Bytes>();
  for (std::size_t i = 5; i < value.size(); ++i) info.encodings.push_back(encoding_from(value.at(i)));
  return info;
}

Json taken_to_json(const std::vector<DevicePart::Taken>& all) {
  Json array = Json::array();
  for (const auto& [peak, net] : all) array.push_back({peak, net});
  return array;
}

std::vector<DevicePart::Taken> taken_from(const JsonField& all, std::size_t expected) {
  std::vector<DevicePart::Taken> found;
  for (const JsonField& one : all.items()) found.push_back({one.at(0).as<Bytes>(), one.at(1).as<Bytes>()});
  if (found.size() != expected) all.refuse(fmt::format("{} of them, as many as there are in the step", expected));
  return found;
}

Json part_to_json(const DevicePart& part) {
  return {{"device", part.device},
          {"static_bytes", part.static_bytes},
          {"static_by_tag", part.static_by_tag},
          {"update_bytes", part.update_bytes},
          {"ops", taken_to_json(part.ops)},
          {"events", taken_to_json(part.events)}};
}

void read_tags(const JsonField& json, std::array<Bytes, 6>& by_tag) {
  for (std::size_t tag = 0; tag < by_tag.size(); ++tag) by_tag[tag] = json.at(tag).as<Bytes>(kNotNegative);
}

DevicePart part_from(const JsonField& json, const StepGraph& graph) {
  DevicePart part;
  part.device = json.at("device").as<std::int32_t>({.low = 1, .high = static_cast<double>(graph.devices.size()) - 1});
  part.static_bytes = json.required<Bytes>("static_bytes", kNotNegative);
  read_tags(json.at("static_by_tag"), part.static_by_tag);
  part.update_bytes = json.required<Bytes>("update_bytes", kNotNegative);
  part.ops = taken_from(json.at("ops"), graph.ops.size());
  part.events = taken_from(json.at("events"), graph.events.size());
  return part;
}

Event event_from(const JsonField& e, const Dataflow& flow, std::int64_t version) {
  using Kind = Event::Kind;
  const auto kind = static_cast<Kind>(e.at(0).as<int>({.low = 0, .high = static_cast<double>(Kind::Other)}));
  const bool has_no_id = kind == Kind::Settle || kind == Kind::Other;
  const std::int32_t end = kind == Kind::Run ? flow.ops() : flow.values();
  const Range ids = has_no_id ? kAnyNumber : Range{.low = 0, .high = static_cast<double>(end) - 1};
  return {kind, e.at(1).as<std::int32_t>(ids), e.at(2).as<Bytes>(), e.at(3).as<Bytes>(),
          version > 2 ? e.at(4).as<double>() : 0};
}

/// Graphs of before had no clock: operators took what they took, and what is left of the step is spread over the events
/// of the backward pass.
void estimate_clock(StepGraph& graph) {
  double left = graph.step_seconds;
  for (Event& e : graph.events) {
    if (e.kind == Event::Kind::Run) left -= e.seconds = std::min(graph.ops[at(e.id)].seconds, std::max(left, 0.0));
  }
  const std::size_t settle = graph.settle_event();
  const std::size_t first = settle + 1 < graph.events.size() ? settle + 1 : 0;
  const auto share = std::max(left, 0.0) / static_cast<double>(std::max<std::size_t>(graph.events.size() - first, 1));
  for (std::size_t i = first; i < graph.events.size(); ++i) graph.events[i].seconds += share;
}

Json to_json(const MoveCost& cost) {
  Json json = {{"out_seconds_per_byte", cost.out_seconds_per_byte},
               {"in_seconds_per_byte", cost.in_seconds_per_byte},
               {"seconds_per_copy", cost.seconds_per_copy},
               {"overlaps", cost.overlaps}};
  if (cost.own_out_seconds_per_byte > 0) json["own_out_seconds_per_byte"] = cost.own_out_seconds_per_byte;
  if (cost.own_in_seconds_per_byte > 0) json["own_in_seconds_per_byte"] = cost.own_in_seconds_per_byte;
  if (cost.budget) json["budget"] = *cost.budget;
  if (cost.in_slabs) json["in_slabs"] = true;
  return json;
}

MoveCost move_cost_from(const JsonField& json) {
  MoveCost cost{.out_seconds_per_byte = json.required<double>("out_seconds_per_byte", kSeconds),
                .in_seconds_per_byte = json.required<double>("in_seconds_per_byte", kSeconds),
                .seconds_per_copy = json.required<double>("seconds_per_copy", kSeconds),
                .own_out_seconds_per_byte = json.optional<double>("own_out_seconds_per_byte", 0, kSeconds),
                .own_in_seconds_per_byte = json.optional<double>("own_in_seconds_per_byte", 0, kSeconds),
                .budget = std::nullopt};
  if (const auto overlaps = json.find("overlaps")) cost.overlaps = overlaps->as<bool>();
  if (const auto slabs = json.find("in_slabs")) cost.in_slabs = slabs->as<bool>();
  if (const auto budget = json.find("budget")) cost.budget = budget->as<Bytes>({.low = 0, .high = kMostBytes});
  return cost;
}

/// The sum of the absolute values of all bytes of a graph: no sum that a planner makes of them is larger.
double sum_of_bytes(const StepGraph& graph) {
  double sum = 0;
  const auto add = [&](Bytes bytes) { sum += std::abs(static_cast<double>(bytes)); };
  add(graph.static_bytes);
  add(graph.others_held);
  add(graph.update_bytes);
  for (const Bytes bytes : graph.static_by_tag) add(bytes);
  for (const OpInfo& op : graph.ops) add(op.peak_bytes), add(op.other_bytes);
  for (const ValueInfo& value : graph.values) {
    add(value.bytes), add(value.leaf_bytes);
    for (const Encoding& e : value.encodings)
      add(e.content_bytes), add(e.bytes), add(e.encode_scratch), add(e.decode_scratch);
  }
  for (const Event& e : graph.events) add(e.peak), add(e.net);
  for (const DevicePart& part : graph.parts) {
    add(part.static_bytes);
    add(part.update_bytes);
    for (const auto* all : {&part.ops, &part.events}) {
      for (const auto& [peak, net] : *all) add(peak), add(net);
    }
  }
  return sum;
}

void check(const DevicePart& part, const StepGraph& graph, const std::function<void(const std::string&)>& refuse) {
  for (std::size_t i = 0; i < part.ops.size(); ++i) {
    if (part.ops[i].peak < 0) refuse(fmt::format("operator {} takes {} bytes of {}", i, part.ops[i].peak, part.device));
  }
  for (std::size_t i = 0; i < part.events.size(); ++i) {
    if (graph.events[i].kind != Event::Kind::Other && part.events[i] != DevicePart::Taken{})
      refuse("an event other than allocations has bytes of its own");
  }
}

/// What planners take for granted of a recorded step.
void check(const StepGraph& graph, const JsonField& json) {
  const auto refuse = [&](const std::string& what) { json.fail(fmt::format("{}; {}", what, kGraphCure)); };
  const auto is_time = [](double seconds) { return seconds >= kSeconds.low && seconds <= kSeconds.high; };
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const OpInfo& op = graph.ops[i];
    if (!is_time(op.seconds) || op.peak_bytes < 0) {
      refuse(fmt::format("operator {} takes {} s and {} bytes; neither can be negative, and no time longer than 1e12 s",
                         i, op.seconds, op.peak_bytes));
    }
  }
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    const ValueInfo& value = graph.values[v];
    if (value.bytes < 0 || value.leaf_bytes < 0)
      refuse(fmt::format("value {} has {} bytes", v, std::min(value.bytes, value.leaf_bytes)));
    if (value.device < 0 || static_cast<std::size_t>(value.device) >= graph.devices.size())
      refuse(fmt::format("value {} is on device {} of {}", v, value.device, graph.devices.size()));
  }
  if (const double sum = sum_of_bytes(graph) * graph.in_flight; sum > kMostBytes)
    refuse(fmt::format("its memory adds up to {:g} bytes; planners count up to 2^53", sum));
  for (const DevicePart& part : graph.parts) check(part, graph, refuse);
  OpId next = 0;
  bool settled = false;
  for (const Event& e : graph.events) {
    if (e.kind != Event::Kind::Other && (e.peak != 0 || e.net != 0))
      refuse("an event other than allocations has bytes of its own");
    if (!is_time(e.seconds)) refuse(fmt::format("an event takes {} s", e.seconds));
    if (e.kind == Event::Kind::Run && (settled || e.id != next++)) {
      refuse(fmt::format("operator {} runs out of order; each runs once, before the forward pass ends", e.id));
    }
    if (e.kind == Event::Kind::Settle && std::exchange(settled, true)) refuse("the forward pass ends twice");
  }
  if (next != graph.flow.ops() || (!settled && !graph.events.empty())) {
    refuse(fmt::format("{} of {} operators run, and the forward pass {}", next, graph.flow.ops(),
                       settled ? "ends" : "does not end"));
  }
}

}  // namespace

Json to_json(const StepGraph& graph) {
  std::vector<ValueId> leaves;
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    if (graph.flow.is_leaf(v)) leaves.push_back(v);
  }
  Json ops = Json::array();
  for (const OpInfo& op : graph.ops)
    ops.push_back({op.name, op.signature, op.seconds, op.peak_bytes, op.other_bytes, op.inputs, op.module, op.stream});
  Json values = Json::array();
  for (const ValueInfo& value : graph.values) {
    Json entry = {value.bytes, value.saved};
    const bool located = value.device != 0 || value.leaf_bytes != 0 || !value.encodings.empty();
    if (value.must != Must::Nothing || located) entry.push_back(word_of(value.must));
    if (located) entry.insert(entry.end(), {value.device, value.leaf_bytes});
    for (const Encoding& encoding : value.encodings) entry.push_back(to_json(encoding));
    values.push_back(std::move(entry));
  }
  Json events = Json::array();
  for (const Event& e : graph.events) events.push_back({static_cast<int>(e.kind), e.id, e.peak, e.net, e.seconds});
  Json json = {{"format", kGraphFormat},
               {"version", kGraphVersion},
               {"devices", graph.devices},
               {"static_bytes", graph.static_bytes},
               {"static_by_tag", graph.static_by_tag},
               {"step_seconds", graph.step_seconds},
               {"update_seconds", graph.update_seconds},
               {"update_bytes", graph.update_bytes},
               {"leaves", leaves},
               {"flow", flow_to_json(graph.flow)},
               {"ops", ops},
               {"values", values},
               {"events", events}};
  for (const DevicePart& part : graph.parts) json["parts"].push_back(part_to_json(part));
  if (graph.moves.host) json["host"] = to_json(*graph.moves.host);
  if (graph.moves.disk) json["disk"] = to_json(*graph.moves.disk);
  if (graph.lossy != Codec::None) json["lossy"] = word_of(graph.lossy);
  if (graph.in_flight > 1) json["in_flight"] = graph.in_flight;
  if (!graph.stages.empty()) json["stages"] = graph.stages;
  if (graph.others_held > 0) json["others_held"] = graph.others_held;
  if (graph.others_least > 0) json["others_least"] = graph.others_least;
  for (const std::vector<InFlight>& at_once : graph.in_flight_with) {
    Json entry = Json::array();
    for (const auto& [kind, count] : at_once) entry.push_back({kind, count});
    json["in_flight_with"].push_back(std::move(entry));
  }
  return json;
}

StepGraph step_graph_from(const JsonField& json) {
  if (const JsonField format = json.at("format"); !format.is(kGraphFormat)) format.refuse(quoted_text(kGraphFormat));
  const auto version = json.required<std::int64_t>("version");
  if (version < kOldestGraphVersion || version > kGraphVersion) {
    json.fail(fmt::format("it is of version {}, and this snug reads {} to {}; {}", version, kOldestGraphVersion,
                          kGraphVersion, kGraphCure));
  }
  StepGraph graph;
  if (version > 2) graph.devices = json.required<std::vector<std::string>>("devices");
  graph.static_bytes = json.required<Bytes>("static_bytes", kNotNegative);
  read_tags(json.at("static_by_tag"), graph.static_by_tag);
  graph.step_seconds = json.required<double>("step_seconds", kSeconds);
  graph.update_seconds = json.required<double>("update_seconds", kSeconds);
  graph.update_bytes = json.required<Bytes>("update_bytes", kNotNegative);
  for (const JsonField& op : json.at("ops").items()) graph.ops.push_back(op_from(op));
  for (const JsonField& value : json.at("values").items()) graph.values.push_back(value_info_from(value));
  graph.flow = flow_from(json.at("flow"), json.at("leaves"), graph.ops, static_cast<ValueId>(graph.values.size()));
  if (static_cast<std::size_t>(graph.flow.ops()) != graph.ops.size()) {
    json.fail(
        fmt::format("{} operators in \"flow\" but {} in \"ops\"; {}", graph.flow.ops(), graph.ops.size(), kGraphCure));
  }
  for (const JsonField& e : json.at("events").items()) graph.events.push_back(event_from(e, graph.flow, version));
  if (const auto parts = json.find("parts")) {
    for (const JsonField& part : parts->items()) graph.parts.push_back(part_from(part, graph));
  }
  if (const auto host = json.find("host")) graph.moves.host = move_cost_from(*host);
  if (const auto disk = json.find("disk")) graph.moves.disk = move_cost_from(*disk);
  if (const auto lossy = json.find("lossy")) graph.lossy = lossy->one_of(kCodecWords);
  graph.in_flight = json.optional<std::int32_t>("in_flight", 1, {.low = 1, .high = kMostInFlight});
  graph.others_held = json.optional<Bytes>("others_held", 0, kNotNegative);
  graph.others_least =
      json.optional<Bytes>("others_least", 0, {.low = 0, .high = static_cast<double>(graph.others_held)});
  if (const auto stages = json.find("stages")) graph.stages = stages->as<std::vector<std::int32_t>>();
  if (const auto with = json.find("in_flight_with")) {
    for (const JsonField& at_once : with->items()) {
      std::vector<InFlight>& entry = graph.in_flight_with.emplace_back();
      for (const JsonField& one : at_once.items())
        entry.push_back({one.at(0).as<std::uint64_t>(), one.at(1).as<std::int32_t>({.low = 0, .high = kMostInFlight})});
    }
  }
  check(graph, json);
  if (version == 2) estimate_clock(graph);
  return graph;
}

StepGraph step_graph_from_json(const nlohmann::json& json) {
  return step_graph_from(JsonFile::parsed(json, {"step graph", kGraphCure}).root());
}

}  // namespace snug::plan
