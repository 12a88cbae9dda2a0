#pragma once

#include <span>
#include <string>
#include <vector>

#include "snug/plan/step/segments.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// Operators in a row that ran in one module (OpInfo::module) of these names, or in modules inside of it. A name is a
/// shell's pattern of a module's path, or of the end of it behind a dot: "mlp" is of "blocks.0.mlp". Throws UsageError
/// for a name that nothing ran in, and without names.
std::vector<SegmentRange> calls_of_modules(const StepGraph& graph, std::span<const std::string> names);

}  // namespace snug::plan
