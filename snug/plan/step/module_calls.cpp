#include "snug/plan/step/module_calls.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>

#include "snug/base/errors.h"
#include "snug/base/name_pattern.h"
#include "snug/base/nearest.h"

namespace snug::plan {
namespace {

/// A path and those of the modules around it, the outermost first.
std::vector<std::string> with_those_around(const std::string& path) {
  std::vector<std::string> paths;
  for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1))
    paths.push_back(path.substr(0, dot));
  if (!path.empty()) paths.push_back(path);
  return paths;
}

/// The outermost module around an operator that has the name.
std::optional<std::string> module_of(const OpInfo& op, const std::string& name) {
  const std::vector<std::string> paths = with_those_around(op.module);
  const auto found = std::ranges::find_if(paths, [&](const std::string& path) { return name_matches(name, path); });
  return found != paths.end() ? std::optional(*found) : std::nullopt;
}

[[noreturn]] void refuse(const StepGraph& graph, const std::string& name) {
  std::set<std::string> ends;
  for (const OpInfo& op : graph.ops) {
    for (const std::string& path : with_those_around(op.module)) ends.insert(path.substr(path.rfind('.') + 1));
  }
  std::erase_if(ends, [](const std::string& end) { return end.find_first_not_of("0123456789") == std::string::npos; });
  const std::vector<std::string> known(ends.begin(), ends.end());
  if (known.empty()) {
    throw UsageError(fmt::format(
        "plan: no operator ran in a module \"{}\", as modules have no names here; give them some (ModuleScope)", name));
  }
  throw UsageError(fmt::format("plan: no operator ran in a module \"{}\"; {}there are {}", name,
                               did_you_mean(name, known), fmt::join(known, ", ")));
}

}  // namespace

std::vector<SegmentRange> calls_of_modules(const StepGraph& graph, std::span<const std::string> names) {
  std::set<std::string> modules;
  for (const std::string& name : names) {
    const std::size_t before = modules.size();
    for (const OpInfo& op : graph.ops) {
      if (const auto module = module_of(op, name)) modules.insert(*module);
    }
    const bool is_another = modules.size() > before || std::ranges::any_of(modules, [&](const std::string& module) {
                              return name_matches(name, module);
                            });
    if (!is_another) refuse(graph, name);
  }
  std::vector<SegmentRange> calls;
  std::string last;
  for (OpId op = 0; op < graph.flow.ops(); ++op) {
    // Of nested ones the outermost.
    const std::vector<std::string> paths = with_those_around(graph.ops[at(op)].module);
    const auto found = std::ranges::find_if(paths, [&](const std::string& path) { return modules.contains(path); });
    const std::string module = found != paths.end() ? *found : "";
    if (module.empty()) {
      last.clear();
    } else if (module == last) {
      calls.back().end = op + 1;
    } else {
      calls.push_back({op, op + 1});
      last = module;
    }
  }
  return calls;
}

}  // namespace snug::plan
