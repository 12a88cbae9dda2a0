// Plans, and what they are made of and for.
#include "python/bindings/plans.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "snug/plan/bound/lower_bound.h"
#include "snug/plan/budget_request.h"
#include "snug/plan/plan_file.h"
#include "snug/plan/planner.h"
#include "snug/plan/run/explanation.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/strategy.h"

namespace snug::python {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

py::dict to_dict(const plan::Share& share) {
  py::dict dict;
  dict["name"] = share.name;
  dict["kept_bytes"] = share.kept;
  dict["moved_bytes"] = share.moved;
  dict["compressed_bytes"] = share.compressed;
  dict["encoded_bytes"] = share.encoded;
  dict["lossy_bytes"] = share.lossy;
  dict["lossy_in_bytes"] = share.lossy_encoded;
  dict["recomputed_bytes"] = share.recomputed;
  dict["seconds"] = share.seconds;
  dict["replayed_ops"] = share.replayed_ops;
  return dict;
}

py::dict explain(const plan::StepGraph& graph, const plan::MemoryPlan& plan) {
  plan::Explanation why;
  {
    const py::gil_scoped_release release;
    why = plan::explain(graph, plan);
  }
  py::dict dict = to_dict(why.all);
  py::list pieces, operators;
  for (const plan::Share& s : why.pieces) pieces.append(to_dict(s));
  for (const plan::Share& s : why.operators) operators.append(to_dict(s));
  dict["pieces"] = pieces;
  dict["operators"] = operators;
  return dict;
}

void bind_step_graph(py::module_& m) {
  py::class_<plan::StepGraph>(m, "StepGraph")
      .def_property_readonly("operators", [](const plan::StepGraph& g) { return g.ops.size(); })
      .def_readonly("step_seconds", &plan::StepGraph::step_seconds)
      .def_readonly("static_bytes", &plan::StepGraph::static_bytes)
      .def_property_readonly("one_of_several", [](const plan::StepGraph& g) { return !g.in_flight_with.empty(); });
}

void bind_memory_plan(py::module_& m) {
  py::class_<plan::PlannedPart>(m, "PlannedPart",
                                "What a plan takes of a further device that has a budget of its own, in bytes.")
      .def_readonly("device", &plan::PlannedPart::device)
      .def_readonly("budget", &plan::PlannedPart::budget)
      .def_readonly("predicted_peak", &plan::PlannedPart::predicted_peak)
      .def_readonly("unplanned_peak", &plan::PlannedPart::unplanned_peak)
      .def("__repr__", [](const plan::PlannedPart& p) {
        return "PlannedPart(" + p.device + ": peak " + format_bytes(p.predicted_peak) + " of " +
               format_bytes(p.unplanned_peak) + ", budget " + format_bytes(p.budget) + ")";
      });
  py::class_<plan::MemoryPlan>(m, "MemoryPlan")
      .def_readonly("strategy", &plan::MemoryPlan::strategy)
      .def_readonly("budget", &plan::MemoryPlan::budget)
      .def_readonly("predicted_peak", &plan::MemoryPlan::predicted_peak)
      .def_readonly("unplanned_peak", &plan::MemoryPlan::unplanned_peak)
      .def_readonly("predicted_seconds", &plan::MemoryPlan::predicted_seconds)
      .def_readonly("unplanned_seconds", &plan::MemoryPlan::unplanned_seconds)
      .def_readonly("others", &plan::MemoryPlan::others)
      .def("__eq__", [](const plan::MemoryPlan& a, const plan::MemoryPlan& b) { return a == b; });
}

void bind_plan_file(py::module_& m) {
  py::class_<plan::PlanFile>(m, "PlanFile", "A plan with the operators of the step that it is for.")
      .def(py::init([](const plan::StepGraph& graph, const plan::MemoryPlan& plan) {
             return plan::plan_file_for(graph, plan);
           }),
           py::arg("graph"), py::arg("plan"))
      .def_readonly("plan", &plan::PlanFile::plan)
      .def_property_readonly("lossy",
                             [](const plan::PlanFile& file) {
                               return std::ranges::any_of(file.plan.actions,
                                                          [](plan::Action a) { return plan::is_lossy(a); });
                             })
      .def(
          "check_is_for", [](const plan::PlanFile& file, const plan::StepGraph& graph) { check_is_for(file, graph); },
          py::arg("graph"))
      .def(
          "write", [](const plan::PlanFile& file, const std::string& path) { plan::write_plan(path, file); },
          py::arg("path"));
  m.def(
      "read_plan", [](const std::string& path) { return plan::read_plan(path); }, py::arg("path"));
}

void bind_planner(py::module_& m) {
  py::class_<plan::Planner>(m, "Planner")
      .def(py::init([](const plan::StepGraph& graph, const std::string& strategy) {
             return std::make_unique<plan::Planner>(graph, strategy);
           }),
           NoGil(), py::arg("graph"), py::arg("strategy"))
      .def(
          "plan",
          [](const plan::Planner& p, const plan::StepGraph& graph, std::optional<Bytes> budget) {
            return p.plan(graph, budget_of(budget));
          },
          NoGil(), py::arg("graph"), py::arg("budget"))
      .def("floor", [](const plan::Planner& p, const plan::StepGraph& graph) {
        return plan::Budget::for_limit(1).floor_for(p.floor(graph));
      });
}

void bind_budget(py::module_& m) {
  py::class_<plan::Percent>(m, "Percent").def_readonly("value", &plan::Percent::value);
  m.def("parse_budget", &plan::parse_budget, py::arg("text"));
}

std::optional<Bytes> limit_for(const std::optional<plan::BudgetRequest>& budget, const plan::StepGraph& graph) {
  const auto found = plan::budget_for(budget, plan::plan_none(graph).predicted_peak);
  return found ? std::optional(found->limit) : std::nullopt;
}

/// What can be asked of a graph, or of a plan for it.
void bind_questions(py::module_& m) {
  m.def("limit_for", &limit_for, py::arg("budget"), py::arg("graph"));
  m.def("may_compress", &plan::may_compress, py::arg("strategy"));
  m.def("explain", &explain, py::arg("graph"), py::arg("plan"));
  m.def(
      "lower_bound",
      [](const plan::StepGraph& graph, std::optional<Bytes> budget) {
        const plan::LowerBound bound = plan::lower_bound_within(graph, budget_of(budget));
        return std::make_pair(bound.peak, bound.step_seconds);
      },
      NoGil(), py::arg("graph"), py::arg("budget"));
  m.def(
      "timeline",
      [](const plan::StepGraph& graph, const plan::MemoryPlan& plan) {
        return simulate(graph, plan, plan::Detail::Timeline).peaks;
      },
      NoGil(), py::arg("graph"), py::arg("plan"));
  m.def(
      "write_step_graph",
      [](const std::string& path, const plan::StepGraph& graph) { plan::write_step_graph(path, graph); },
      py::arg("path"), py::arg("graph"));
  m.def(
      "read_step_graph", [](const std::string& path) { return plan::read_step_graph(path); }, py::arg("path"));
}

}  // namespace

std::optional<plan::Budget> budget_of(std::optional<Bytes> bytes) {
  if (!bytes) return std::nullopt;
  return plan::Budget::for_limit(*bytes);
}

void bind_plans(py::module_& m) {
  bind_step_graph(m);
  bind_memory_plan(m);
  bind_plan_file(m);
  bind_planner(m);
  bind_budget(m);
  bind_questions(m);
}

}  // namespace snug::python
