#include "snug/plan/plan_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/json_field.h"
#include "snug/base/text_file.h"

namespace snug::plan {
namespace {

using Json = nlohmann::ordered_json;

JsonFile open_json(const std::filesystem::path& path, const char* what, const char* cure) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw UsageError(fmt::format("{}: {} is a folder; name the file", what, path.string()));
  }
  const std::string text = [&] {
    try {
      return read_text(path);
    } catch (const std::system_error& error) {
      throw UsageError(fmt::format("{}: {} cannot be read: {}; {}", what, path.string(), error.code().message(), cure));
    }
  }();
  return {text, {.name = fmt::format("{}: {}", what, path.string()), .cure = cure}};
}

void write_json(const std::filesystem::path& path, const Json& json, const char* what) {
  try {
    write_text(path, json.dump() + '\n');
  } catch (const std::system_error& error) {
    throw Error(fmt::format("{}: {} cannot be written: {}", what, path.string(), error.code().message()));
  }
}

}  // namespace

PlanFile plan_file_for(const StepGraph& graph, MemoryPlan plan) {
  PlanFile file{std::move(plan), {}};
  for (const OpInfo& op : graph.ops) file.ops.push_back({op.name, op.signature});
  return file;
}

void check_is_for(const PlanFile& file, const StepGraph& graph) {
  const std::size_t both = std::min(file.ops.size(), graph.ops.size());
  for (std::size_t i = 0; i < both; ++i) {
    if (file.ops[i].signature == graph.ops[i].signature) continue;
    const bool same_name = file.ops[i].name == graph.ops[i].name;
    throw UsageError(fmt::format(
        "plan: it is for another step: operator {} is {} there and {} here{}; plan this step, or use the configuration "
        "that the plan was made with",
        i, file.ops[i].name, graph.ops[i].name, same_name ? " with other shapes or inputs" : ""));
  }
  if (file.ops.size() != graph.ops.size()) {
    throw UsageError(
        fmt::format("plan: it is for another step: that has {} operators, this has {}, and they agree up to operator "
                    "{}; plan this step, "
                    "or use the configuration that the plan was made with",
                    file.ops.size(), graph.ops.size(), both));
  }
  if (file.plan.fingerprint != graph.fingerprint() || file.plan.actions.size() != graph.values.size()) {
    throw UsageError("plan: its operators are this step's, but its actions are not; make it again");
  }
}

Json to_json(const PlanFile& file) {
  Json json = to_json(file.plan);
  // Each name once: steps repeat the same few operators.
  Json names = Json::array();
  std::unordered_map<std::string, std::size_t> known;
  Json ops = Json::array();
  for (const PlanFile::Operator& op : file.ops) {
    const auto [position, is_new] = known.try_emplace(op.name, known.size());
    if (is_new) names.push_back(op.name);
    ops.push_back({position->second, op.signature});
  }
  json["operator_names"] = std::move(names);
  json["operators"] = std::move(ops);
  return json;
}

PlanFile plan_file_from(const JsonField& json) {
  PlanFile file{memory_plan_from(json), {}};
  const auto names = json.required<std::vector<std::string>>("operator_names");
  for (const JsonField& op : json.at("operators").items()) {
    const auto name = op.at(0).as<std::size_t>({.low = 0, .high = static_cast<double>(names.size()) - 1});
    file.ops.push_back({names[name], op.at(1).as<std::uint64_t>()});
  }
  const JsonField segments = json.at("segments");
  for (std::size_t i = 0; i < file.plan.segments.size(); ++i) {
    if (std::cmp_greater(file.plan.segments[i].end, file.ops.size())) {
      segments.at(i).at(1).refuse(fmt::format("{} at most, the number of operators", file.ops.size()));
    }
  }
  return file;
}

void write_plan(const std::filesystem::path& path, const PlanFile& file) { write_json(path, to_json(file), "plan"); }

PlanFile read_plan(const std::filesystem::path& path) {
  const JsonFile file = open_json(path, "plan", kPlanCure);
  return plan_file_from(file.root());
}

void write_step_graph(const std::filesystem::path& path, const StepGraph& graph) {
  write_json(path, to_json(graph), "step graph");
}

StepGraph read_step_graph(const std::filesystem::path& path) {
  const JsonFile file = open_json(path, "step graph", kGraphCure);
  return step_graph_from(file.root());
}

}  // namespace snug::plan
