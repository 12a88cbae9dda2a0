#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "snug/replay/planned_step.h"
#include "snug/replay/record_step.h"

namespace snug::python {

/// Recorded steps, and what a step function that runs tells of itself. After bind_plans, whose graphs steps have.
void bind_steps(pybind11::module_& module);

/// As Python holds it.
using Recorded = std::shared_ptr<replay::RecordedStep>;

/// All kinds of steps that training is made of, the one that updates first, and their planners.
struct Kinds {
  std::vector<replay::PlannedStep> all;
};

/// The Python step as the core calls it: without the GIL. `step` must outlive what is returned.
replay::Forward forward_of(const pybind11::function& step);

/// By the devices' names.
using NamedBudgets = std::vector<std::pair<std::string, Bytes>>;
std::vector<DeviceBudget> budgets_of(const NamedBudgets& named);

}  // namespace snug::python
