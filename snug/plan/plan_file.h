#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// A plan as it is kept in a file, with the operators of the step that it is for.
struct PlanFile {
  struct Operator {
    std::string name;
    std::uint64_t signature = 0;
    friend bool operator==(const Operator&, const Operator&) = default;
  };
  MemoryPlan plan;
  std::vector<Operator> ops;  // by OpId
  friend bool operator==(const PlanFile&, const PlanFile&) = default;
};

PlanFile plan_file_for(const StepGraph& graph, MemoryPlan plan);

/// Throws UsageError, naming the first operator that differs, when the plan is for another step than `graph`.
void check_is_for(const PlanFile& file, const StepGraph& graph);

nlohmann::ordered_json to_json(const PlanFile& file);
/// Refuses, as its source says, what is missing or out of range.
PlanFile plan_file_from(const JsonField& json);

// Reading and writing throw UsageError for a file that cannot be read or holds something else, Error for one that
// cannot be written in full. Writing replaces the file whole or leaves what was there.
void write_plan(const std::filesystem::path& path, const PlanFile& file);
PlanFile read_plan(const std::filesystem::path& path);
void write_step_graph(const std::filesystem::path& path, const StepGraph& graph);
StepGraph read_step_graph(const std::filesystem::path& path);

}  // namespace snug::plan
