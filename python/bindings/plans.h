#pragma once

#include <torch/csrc/utils/pybind.h>

#include <optional>

#include "snug/base/bytes.h"
#include "snug/plan/budget.h"

namespace snug::python {

/// Step graphs, plans, planners, and what can be asked of them without running anything.
void bind_plans(pybind11::module_& module);

/// A budget under a limit of so many bytes; none for None.
std::optional<plan::Budget> budget_of(std::optional<Bytes> bytes);

}  // namespace snug::python
