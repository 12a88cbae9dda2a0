#include "snug/plan/plan_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/json_integer.h"
#include "snug/base/text_file.h"

namespace snug::plan {
namespace {

using Json = nlohmann::ordered_json;

Json read_json(const std::filesystem::path& path, const char* what) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw UsageError(fmt::format("{}: {} is a folder; name the file", what, path.string()));
  }
  try {
    return Json::parse(read_text(path));
  } catch (const std::system_error& error) {
    throw UsageError(fmt::format("{}: {} cannot be read: {}", what, path.string(), error.code().message()));
  } catch (const nlohmann::json::exception&) {
    throw UsageError(fmt::format("{}: {} is not whole: it is no JSON; make it again", what, path.string()));
  }
}

void write_json(const std::filesystem::path& path, const Json& json, const char* what) {
  try {
    write_text(path, json.dump() + '\n');
  } catch (const std::system_error& error) {
    throw Error(fmt::format("{}: {} cannot be written: {}", what, path.string(), error.code().message()));
  }
}

/// What a reader threw, with the file's name in front.
template <class Read>
auto named(const std::filesystem::path& path, Read&& read) {
  try {
    return read();
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", path.string(), error.what()));
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

PlanFile plan_file_from_json(const Json& json) try {
  PlanFile file{memory_plan_from_json(json), {}};
  const auto names = json.at("operator_names").get<std::vector<std::string>>();
  for (const Json& op : json.at("operators")) {
    file.ops.push_back({names.at(json_integer<std::size_t>(op.at(0))), json_integer<std::uint64_t>(op.at(1))});
  }
  const auto ops = static_cast<OpId>(file.ops.size());
  for (const SegmentRange& range : file.plan.segments) {
    if (range.end > ops) {
      throw UsageError(fmt::format("memory plan: segment [{}, {}] ends after operator {}, the last", range.begin,
                                   range.end, ops - 1));
    }
  }
  return file;
} catch (const std::exception& error) {
  if (dynamic_cast<const UsageError*>(&error) != nullptr) throw;
  throw UsageError(fmt::format("memory plan: {}", error.what()));
}

void write_plan(const std::filesystem::path& path, const PlanFile& file) { write_json(path, to_json(file), "plan"); }

PlanFile read_plan(const std::filesystem::path& path) {
  const Json json = read_json(path, "plan");
  return named(path, [&] { return plan_file_from_json(json); });
}

void write_step_graph(const std::filesystem::path& path, const StepGraph& graph) {
  write_json(path, to_json(graph), "step graph");
}

StepGraph read_step_graph(const std::filesystem::path& path) {
  const Json json = read_json(path, "step graph");
  return named(path, [&] { return step_graph_from_json(json); });
}

}  // namespace snug::plan
