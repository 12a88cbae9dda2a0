#include "snug/plan/step/step_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/hash.h"
#include "snug/base/json_integer.h"

namespace snug::plan {
namespace {

constexpr int kGraphVersion = 3, kOldestGraphVersion = 2;  // 2 had no clock, no bytes of leaves, no devices
constexpr const char* kGraphFormat = "snug step graph";

using Json = nlohmann::ordered_json;

Json flow_to_json(const Dataflow& flow) {
  Json ops = Json::array();
  for (OpId op = 0; op < flow.ops(); ++op) {
    Json outputs = Json::array();
    for (const Output& out : flow.outputs(op)) outputs.push_back({out.value, out.overwrites});
    ops.push_back({{"inputs", flow.inputs(op)}, {"outputs", outputs}});
  }
  return ops;
}

ValueId value_from(const Json& json, ValueId values) {
  if (!json.is_number_integer() || json < 0 || json >= values) {
    throw UsageError(fmt::format("step graph: value {} of {} does not exist", json.dump(), values));
  }
  return json.get<ValueId>();
}

/// Values are numbered as they were first seen, so leaves are those that no operator makes.
Dataflow flow_from_json(const Json& ops, const Json& leaves, ValueId values) {
  Dataflow flow;
  std::vector<char> is_leaf(static_cast<std::size_t>(values), 0);
  for (const Json& leaf : leaves) is_leaf[static_cast<std::size_t>(value_from(leaf, values))] = 1;
  const auto add_leaves_up_to = [&](ValueId next) {
    while (flow.values() < next) flow.add_leaf();
  };
  for (const Json& op : ops) {
    std::vector<ValueId> inputs;
    for (const Json& input : op.at("inputs")) {
      inputs.push_back(value_from(input, values));
      add_leaves_up_to(inputs.back() + 1);
    }
    const Json& outputs = op.at("outputs");
    if (!outputs.empty()) add_leaves_up_to(value_from(outputs.at(0).at(0), values));
    flow.add_op(inputs, kRootSegment);
    for (const Json& out : outputs) {
      const ValueId v = value_from(out.at(0), values);
      if (v != flow.values()) throw UsageError(fmt::format("step graph: value {} is out of order", v));
      const Json& overwrites = out.at(1);
      if (!overwrites.is_number_integer() || overwrites < kNoValue || overwrites >= v) {
        throw UsageError(fmt::format("step graph: value {} overwrites value {}, which is not there before it", v,
                                     overwrites.dump()));
      }
      flow.add_output(overwrites.get<ValueId>());
      if (is_leaf[static_cast<std::size_t>(v)]) flow.make_leaf(v);
    }
  }
  add_leaves_up_to(values);
  return flow;
}

std::string word_of(Must must) {
  switch (must) {
    case Must::Keep:
      return "keep";
    case Must::Recompute:
      return "recompute";
    case Must::Nothing:
      break;
  }
  return "";
}

Must must_from(const std::string& word) {
  for (const Must must : {Must::Nothing, Must::Keep, Must::Recompute}) {
    if (word == word_of(must)) return must;
  }
  throw UsageError(fmt::format("step graph: a value must be \"keep\" or \"recompute\", not \"{}\"", word));
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

/// All of a graph's bytes together, whatever their sign: no sum that a planner makes of them is larger.
double sum_of_bytes(const StepGraph& graph) {
  double sum = 0;
  const auto add = [&](Bytes bytes) { sum += std::abs(static_cast<double>(bytes)); };
  add(graph.static_bytes);
  add(graph.update_bytes);
  for (const Bytes bytes : graph.static_by_tag) add(bytes);
  for (const OpInfo& op : graph.ops) add(op.peak_bytes), add(op.other_bytes);
  for (const ValueInfo& value : graph.values) add(value.bytes), add(value.leaf_bytes);
  for (const Event& e : graph.events) add(e.peak), add(e.net);
  return sum;
}

/// What planners take for granted of a recorded step.
void check(const StepGraph& graph) {
  const auto refuse = [](const std::string& what) { throw UsageError("step graph: " + what); };
  const auto is_time = [](double seconds) { return std::isfinite(seconds) && seconds >= 0; };
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const OpInfo& op = graph.ops[i];
    if (!is_time(op.seconds) || op.peak_bytes < 0) {
      refuse(fmt::format("operator {} takes {} s and {} bytes; neither can be negative", i, op.seconds, op.peak_bytes));
    }
  }
  if (!is_time(graph.step_seconds) || !is_time(graph.update_seconds)) {
    refuse(fmt::format("the step takes {} s, its update {} s; neither can be negative", graph.step_seconds,
                       graph.update_seconds));
  }
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    const ValueInfo& value = graph.values[v];
    if (value.bytes < 0 || value.leaf_bytes < 0)
      refuse(fmt::format("value {} has {} bytes", v, std::min(value.bytes, value.leaf_bytes)));
    if (value.device < 0 || static_cast<std::size_t>(value.device) >= graph.devices.size())
      refuse(fmt::format("value {} is on device {} of {}", v, value.device, graph.devices.size()));
  }
  if (const double sum = sum_of_bytes(graph); sum > 0x1p60)
    refuse(fmt::format("its memory adds up to {:g} bytes; planners count up to 2^60", sum));
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

void StepGraph::set_step_seconds(double seconds) {
  double sum = 0;
  for (const Event& e : events) sum += e.seconds;
  for (Event& e : events) e.seconds *= sum > 0 ? seconds / sum : 0;
  step_seconds = seconds;
}

std::size_t StepGraph::settle_event() const {
  const auto settle = std::ranges::find(events, Event::Kind::Settle, &Event::kind);
  return static_cast<std::size_t>(settle - events.begin());
}

void StepGraph::end_with_update(Bytes bytes, double seconds) {
  events.push_back({Event::Kind::Other, -1, bytes, 0, 0});
  update_bytes = bytes;
  update_seconds = seconds;
}

std::uint64_t StepGraph::fingerprint() const {
  std::vector<std::uint64_t> signatures;
  signatures.reserve(ops.size());
  for (const OpInfo& op : ops) signatures.push_back(op.signature);
  return hash_64(std::as_bytes(std::span(signatures)));
}

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
    const bool located = value.device != 0 || value.leaf_bytes != 0;
    if (value.must != Must::Nothing || located) entry.push_back(word_of(value.must));
    if (located) entry.insert(entry.end(), {value.device, value.leaf_bytes});
    values.push_back(std::move(entry));
  }
  Json events = Json::array();
  for (const Event& e : graph.events) events.push_back({static_cast<int>(e.kind), e.id, e.peak, e.net, e.seconds});
  return {{"format", kGraphFormat},
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
}

StepGraph step_graph_from_json(const Json& json) try {
  if (json.at("format") != kGraphFormat) throw UsageError(fmt::format("step graph: not a \"{}\"", kGraphFormat));
  const int version = json_integer<int>(json.at("version"));
  if (version < kOldestGraphVersion || version > kGraphVersion) {
    throw UsageError(
        fmt::format("step graph: it is of version {}, and this snug reads {} to {}; record it again with "
                    "snug plan --graph-out",
                    version, kOldestGraphVersion, kGraphVersion));
  }
  StepGraph graph;
  if (version > 2) graph.devices = json.at("devices").get<std::vector<std::string>>();
  graph.static_bytes = json_integer<Bytes>(json.at("static_bytes"));
  for (std::size_t tag = 0; tag < graph.static_by_tag.size(); ++tag) {
    graph.static_by_tag[tag] = json_integer<Bytes>(json.at("static_by_tag").at(tag));
  }
  graph.step_seconds = json.at("step_seconds");
  graph.update_seconds = json.at("update_seconds");
  graph.update_bytes = json_integer<Bytes>(json.at("update_bytes"));
  for (const Json& op : json.at("ops")) {
    OpInfo& info = graph.ops.emplace_back(OpInfo{op.at(0), json_integer<std::uint64_t>(op.at(1)), op.at(2),
                                                 json_integer<Bytes>(op.at(3)), json_integer<Bytes>(op.at(4))});
    if (op.size() > 5) info.inputs = op.at(5);
    if (op.size() > 6) info.module = op.at(6);
    if (op.size() > 7) info.stream = json_integer<std::int64_t>(op.at(7));
  }
  for (const Json& value : json.at("values")) {
    ValueInfo& info = graph.values.emplace_back(ValueInfo{json_integer<Bytes>(value.at(0)), value.at(1)});
    if (value.size() > 2) info.must = must_from(value.at(2));
    if (value.size() > 3) info.device = json_integer<std::int32_t>(value.at(3));
    if (value.size() > 4) info.leaf_bytes = json_integer<Bytes>(value.at(4));
  }
  graph.flow = flow_from_json(json.at("flow"), json.at("leaves"), static_cast<ValueId>(graph.values.size()));
  if (static_cast<std::size_t>(graph.flow.ops()) != graph.ops.size()) {
    throw UsageError(
        fmt::format("step graph: {} operators in \"flow\" but {} in \"ops\"", graph.flow.ops(), graph.ops.size()));
  }
  for (const Json& e : json.at("events")) {
    const int kind = json_integer<int>(e.at(0));
    const Event event{static_cast<Event::Kind>(kind), json_integer<std::int32_t>(e.at(1)), json_integer<Bytes>(e.at(2)),
                      json_integer<Bytes>(e.at(3)), version > 2 ? e.at(4).get<double>() : 0};
    const bool is_op = event.kind == Event::Kind::Run;
    const bool has_no_id = event.kind == Event::Kind::Settle || event.kind == Event::Kind::Other;
    const std::int32_t end = is_op ? graph.flow.ops() : graph.flow.values();
    if (kind < 0 || kind > static_cast<int>(Event::Kind::Other) || (!has_no_id && (event.id < 0 || event.id >= end))) {
      throw UsageError(fmt::format("step graph: event {} is out of range", e.dump()));
    }
    graph.events.push_back(event);
  }
  check(graph);
  if (version == 2) estimate_clock(graph);
  return graph;
} catch (const std::exception& error) {
  if (dynamic_cast<const UsageError*>(&error) != nullptr) throw;
  throw UsageError(fmt::format("step graph: {}", error.what()));
}

}  // namespace snug::plan
