// Recording a step, and what a step function that runs tells of itself.
#include "python/bindings/steps.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python/bindings/errors.h"
#include "python/bindings/memory.h"
#include "python/bindings/plans.h"
#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/tiers.h"
#include "snug/plan/budget_request.h"
#include "snug/plan/plan_file.h"
#include "snug/record/global_settings.h"
#include "snug/record/micro_batch.h"
#include "snug/replay/fit.h"
#include "snug/replay/moves.h"
#include "snug/replay/other_devices.h"
#include "snug/replay/passed_nodes.h"
#include "snug/replay/step_run.h"
#include "snug/replay/streamed_tensors.h"
#include "snug/replay/undone_draws.h"
#include "snug/replay/undone_writes.h"
#include "snug/replay/window_choice.h"

namespace snug::python {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

/// An object with run(), which tells whether there was anything to run, and forget(). With in_backward it has prepare()
/// and each(parameter) in place of run().
replay::Rehearsal rehearsal_of(const py::object& update) {
  const auto call = [&update](const char* name) {
    const py::gil_scoped_acquire gil;
    try {
      return py::bool_(update.attr(name)()).cast<bool>();
    } catch (py::error_already_set& error) {
      pass_on(error);
    }
  };
  replay::Rehearsal rehearsal;
  if (py::cast<bool>(update.attr("in_backward"))) {
    rehearsal.prepare = [call] { call("prepare"); };
    rehearsal.each = [&update](const at::Tensor& parameter) {
      const py::gil_scoped_acquire gil;
      try {
        update.attr("each")(parameter);
      } catch (py::error_already_set& error) {
        pass_on(error);
      }
    };
  } else {
    rehearsal.run = [call] { return call("run"); };
  }
  rehearsal.forget = [call] { call("forget"); };
  rehearsal.writes_to = update.attr("parameters").cast<std::vector<at::Tensor>>();
  return rehearsal;
}

/// Stops this thread's next operator that would write one of these tensors, by UpdateBegins.
class StopBeforeWrites {
 public:
  explicit StopBeforeWrites(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}
  void enter() {
    gate_.emplace(replay::before_writes_of(tensors_, [] { throw replay::UpdateBegins(); }));
  }
  void exit() { gate_.reset(); }

 private:
  std::vector<at::Tensor> tensors_;
  std::optional<record::OperatorGate> gate_;
};

/// Makes a leaf again of one that an in-place operator has given a history, be it a view.
void forget_history(const at::Tensor& tensor) {
  using torch::autograd::impl::set_gradient_edge;
  if (tensor.is_view()) {
    const at::Tensor base(tensor._base());
    if (!base.is_leaf()) set_gradient_edge(base, {});
  }
  set_gradient_edge(tensor, {});
}

/// A C++ scope as a Python context.
template <class Scope>
class Context {
 public:
  void enter() { scope_.emplace(); }
  /// Throws what cannot be undone, which a destructor swallows.
  void exit() {
    std::exception_ptr failure;
    if constexpr (requires(Scope & scope) { scope.undo(); }) {
      try {
        if (scope_) scope_->undo();
      } catch (...) {
        failure = std::current_exception();
      }
    }
    scope_.reset();
    if (failure) std::rethrow_exception(failure);
  }

 private:
  std::optional<Scope> scope_;
};

template <class Scope>
void bind_context(py::module_& m, const char* name) {
  py::class_<Context<Scope>>(m, name)
      .def(py::init<>())
      .def("__enter__", &Context<Scope>::enter)
      .def("__exit__", [](Context<Scope>& context, const py::args&) { context.exit(); });
}

/// LibTorch 2.11 has a weak reference to a node of Python's.
template <class Held>
auto owned(const Held& held) {
  if constexpr (requires { held.lock(); }) {
    return held.lock();
  } else {
    return held;
  }
}

/// Of a tensor, or of a torch.autograd.graph.GradientEdge.
torch::autograd::Edge edge_of(const py::handle& root) {
  if (THPVariable_Check(root.ptr())) return torch::autograd::impl::gradient_edge(THPVariable_Unpack(root.ptr()));
  const auto edge = py::reinterpret_borrow<py::tuple>(root);  // node, number of its output, ...
  const py::object node = edge[0];
  const auto output = py::cast<std::uint32_t>(edge[1]);
  if (THPFunction_Check(node.ptr())) return {owned(reinterpret_cast<THPFunction*>(node.ptr())->cdata), output};
  if (torch::autograd::THPCppFunction_Check(node.ptr()))
    return {reinterpret_cast<torch::autograd::THPCppFunction*>(node.ptr())->cdata, output};
  throw py::type_error("backward: a root is neither a tensor nor a GradientEdge");
}

replay::StepRun::Roots edges_of(const py::list& roots) {
  replay::StepRun::Roots edges;
  for (const py::handle& root : roots) edges.push_back(edge_of(root));
  return edges;
}

/// A pass of autograd begins. Whether a step function that runs on this thread goes backward by it. `roots`: tensors
/// and GradientEdges.
bool backward_begins(const py::list& roots, bool accumulates_gradients) {
  replay::StepRun* step = replay::StepRun::here();
  if (step == nullptr) return false;
  const replay::StepRun::Roots edges = edges_of(roots);
  const py::gil_scoped_release release;
  using Gradients = replay::StepRun::Gradients;
  if (!step->is_backward(edges, accumulates_gradients ? Gradients::Accumulated : Gradients::Returned)) return false;
  step->backward_begins(edges);
  return true;
}

void backward_ends() {
  if (replay::StepRun* step = replay::StepRun::here()) step->backward_ends();
}

bool is_of_micro_batch(const at::Tensor& loss) {
  const replay::StepRun* const step = replay::StepRun::here();
  return step != nullptr && step->is_of_micro_batch(loss);
}

void update_begins() {
  if (replay::StepRun* step = replay::StepRun::here()) step->update_begins();
}

void micro_batch_begins(int stage) {
  if (record::MicroBatchListener* step = record::MicroBatchListener::here()) step->micro_batch_begins(stage);
}
void micro_batch_ends() {
  if (record::MicroBatchListener* step = record::MicroBatchListener::here()) step->micro_batch_ends();
}
void micro_batch_fails() {
  if (record::MicroBatchListener* step = record::MicroBatchListener::here()) step->micro_batch_fails();
}
bool runs_a_step() { return record::MicroBatchListener::here() != nullptr; }

/// See replay::record_micro_batches.
std::vector<Recorded> record_step(const py::function& step, const std::string& device,
                                  const std::optional<plan::BudgetRequest>& budget, const py::object& update,
                                  const std::shared_ptr<Agreement>& agreement, std::int64_t micro_batches,
                                  const NamedBudgets& others, const std::shared_ptr<memory::Tiers>& tiers,
                                  plan::Codec lossy, const std::shared_ptr<StreamedTensors>& streamed,
                                  const std::vector<at::Tensor>& leaves) {
  const replay::Forward forward = forward_of(step);
  const replay::RecordOptions options{.update = rehearsal_of(update),
                                      .until = replay::RecordUntil::UpdateBegins,
                                      .agreement = agreement,
                                      .leaves = leaves,
                                      .other_budgets = budgets_of(others),
                                      .streamed = streamed,
                                      .lossy = lossy};
  const py::gil_scoped_release release;
  memory::DeviceMemory& memory = device_memory(device);
  std::vector<replay::RecordedStep> recorded =
      replay::record_micro_batches(micro_batches, plan::limit_of(budget), forward, memory, options);
  replay::or_tell(*agreement, [&] { replay::let_move(recorded, memory, *tiers, plan::limit_of(budget)); });
  std::vector<Recorded> kinds;
  for (replay::RecordedStep& kind : recorded) kinds.push_back(std::make_shared<replay::RecordedStep>(std::move(kind)));
  return kinds;
}

void bind_recorded_step(py::module_& m) {
  m.def(
      "tell_failure",
      [](Agreement& group) {
        try {
          (void)group.votes(Vote::Failed);
        } catch (...) {  // NOLINT(bugprone-empty-catch): what has failed is reported
        }
      },
      NoGil(), py::arg("agreement"), "What fails between two votes: the others do not wait for the next one.");
  // The graph by value: whoever has it does not keep the parameters alive.
  py::class_<replay::RecordedStep, Recorded>(m, "RecordedStep")
      .def_property_readonly("graph", [](const replay::RecordedStep& s) { return s.graph; });
  py::enum_<plan::Codec>(m, "Lossy", "Codecs that give back other numbers.")
      .value("Off", plan::Codec::None)
      .value("BFloat16", plan::Codec::BFloat16)
      .value("Float8", plan::Codec::Float8)
      .value("Int8", plan::Codec::Int8)
      .value("Int4", plan::Codec::Int4);
  m.def("record_step", &record_step, py::arg("step"), py::arg("device"), py::arg("budget"), py::arg("update"),
        py::arg("agreement"), py::arg("micro_batches"), py::arg("others"), py::arg("tiers"), py::arg("lossy"),
        py::arg("streamed"), py::arg("leaves"));
}

void bind_tiers(py::module_& m) {
  py::class_<memory::Tiers, std::shared_ptr<memory::Tiers>>(m, "Tiers")
      .def(py::init([](std::optional<Bytes> host, std::optional<Bytes> disk) {
             return std::make_shared<memory::Tiers>(memory::TierBudgets{.host = host, .disk = disk});
           }),
           py::arg("host_budget"), py::arg("disk_budget"));
}

void bind_opened_window(py::module_& m) {
  using Opened = replay::OpenedWindow;
  py::class_<Opened>(m, "OpenedWindow", "The part of the budget that streamed tensors come into, and what that costs.")
      .def_readonly("streamed", &Opened::streamed, "Bytes of all that is streamed.")
      .def_property_readonly(
          "bytes", [](const Opened& o) { return o.window.bytes; }, "Of the window.")
      .def_property_readonly(
          "seconds", [](const Opened& o) { return o.cost.seconds; }, "That a step waits for it.")
      .def_property_readonly(
          "copied_in", [](const Opened& o) { return o.cost.in; }, "Bytes that come to it in a step.")
      .def_property_readonly(
          "copied_out", [](const Opened& o) { return o.cost.out; }, "Bytes that leave it.")
      .def_readonly("floor", &Opened::floor, "The smallest budget, which has the smallest window.")
      .def_readonly("spare", &Opened::spare, "Bytes that this window has more than that.");
}

/// All kinds of steps that training is made of, and their planners.
void bind_kinds(py::module_& m) {
  py::class_<Kinds>(m, "Kinds")
      .def(py::init([](const std::vector<Recorded>& steps, const std::string& strategy) {
             std::vector<replay::RecordedStep> kinds;
             for (const Recorded& step : steps) kinds.push_back(*step);
             return std::make_unique<Kinds>(Kinds{replay::planned(std::move(kinds), strategy)});
           }),
           NoGil(), py::arg("steps"), py::arg("strategy"))
      .def(py::init([](const std::vector<Recorded>& steps, const plan::PlanFile& file) {
             std::vector<replay::RecordedStep> kinds;
             for (const Recorded& step : steps) kinds.push_back(*step);
             plan::check_is_for(file, kinds.front().graph);
             return std::make_unique<Kinds>(Kinds{replay::planned(std::move(kinds), file.plan)});
           }),
           NoGil(), py::arg("steps"), py::arg("plan"))
      .def(
          "open_window",
          [](Kinds& k, StreamedTensors& streamed, Bytes budget, const NamedBudgets& others, const std::string& device,
             std::int64_t micro_batches) {
            return replay::open_best_window(&streamed, k.all, replay::budgets_of(budget_of(budget), budgets_of(others)),
                                            device_memory(device), micro_batches);
          },
          NoGil(), py::arg("streamed"), py::arg("budget"), py::arg("others"), py::arg("device"),
          py::arg("micro_batches"))
      .def_property_readonly("graph", [](const Kinds& k) { return k.all.front().step.graph; })
      .def_property_readonly("planner", [](const Kinds& k) { return k.all.front().planner; })
      .def_property_readonly("count", [](const Kinds& k) { return k.all.size(); })
      .def_property_readonly("floor", [](const Kinds& k) { return replay::smallest_budget(k.all); })
      .def(
          "plan",
          [](const Kinds& k, std::optional<Bytes> budget, const NamedBudgets& others) {
            std::vector<plan::MemoryPlan> plans =
                replay::plan_all(k.all, replay::budgets_of(budget_of(budget), budgets_of(others)));
            plan::StepGraph graph = replay::graph_under(k.all, plans);
            return std::pair(std::move(graph), std::move(plans.front()));
          },
          NoGil(), py::arg("budget"), py::arg("others"));
}

void bind_undoing(py::module_& m) {
  py::class_<record::KeptSettings>(m, "KeptSettings").def(py::init()).def("put_back", &record::KeptSettings::put_back);
  m.def("forget_history", &forget_history, py::arg("tensor"));
  bind_context<replay::UndoneDraws>(m, "UndoneDraws");
  bind_context<replay::UndoneWrites>(m, "UndoneWrites");
}

void bind_stop_before_writes(py::module_& m) {
  py::class_<StopBeforeWrites>(m, "StopBeforeWrites")
      .def(py::init<std::vector<at::Tensor>>(), py::arg("tensors"))
      .def("enter", &StopBeforeWrites::enter)
      .def("exit", &StopBeforeWrites::exit);
}

void bind_passed_nodes(py::module_& m) {
  py::class_<replay::PassedNodes>(m, "PassedNodes")
      .def(py::init<>())
      .def(
          "add", [](replay::PassedNodes& nodes, const py::list& roots) { nodes.add(edges_of(roots)); },
          py::arg("roots"))
      .def("have_all_of", &replay::PassedNodes::have_all_of, py::arg("made"));
}

/// By which Python's hooks around backward passes and optimizers tell a step function that runs where it stands.
void bind_phases(py::module_& m) {
  m.def("backward_begins", &backward_begins, py::arg("roots"), py::arg("accumulates_gradients"));
  m.def("backward_ends", &backward_ends, NoGil());
  m.def("is_of_micro_batch", &is_of_micro_batch, NoGil(), py::arg("loss"));
  m.def("update_begins", &update_begins, NoGil());
  m.def("micro_batch_begins", &micro_batch_begins, NoGil(), py::arg("stage"));
  m.def("micro_batch_ends", &micro_batch_ends, NoGil());
  m.def("micro_batch_fails", &micro_batch_fails, NoGil());
  m.def("runs_a_step", &runs_a_step);
}

}  // namespace

std::vector<DeviceBudget> budgets_of(const NamedBudgets& named) {
  std::vector<DeviceBudget> budgets;
  for (const auto& [device, bytes] : named) budgets.push_back({memory::device_named(device), bytes});
  return budgets;
}

replay::Forward forward_of(const py::function& step) {
  return [&step]() -> at::Tensor {
    const py::gil_scoped_acquire gil;
    try {
      const py::object loss = step();
      const replay::StepRun* run = replay::StepRun::here();
      if (loss.is_none() && run != nullptr && run->may_return_nothing()) return {};
      if (!THPVariable_Check(loss.ptr())) {
        const std::string what = loss.is_none()
                                     ? "None, and did not call backward()"
                                     : "a " + py::str(py::type::of(loss).attr("__name__")).cast<std::string>();
        throw UsageError("step: it returned " + what +
                         "; return the loss, a tensor of one element, or call backward() within the step");
      }
      return THPVariable_Unpack(loss.ptr());
    } catch (py::error_already_set& error) {
      pass_on(error);
    }
  };
}

void bind_steps(py::module_& m) {
  bind_opened_window(m);
  bind_kinds(m);
  bind_tiers(m);
  bind_recorded_step(m);
  bind_undoing(m);
  bind_stop_before_writes(m);
  bind_phases(m);
  bind_passed_nodes(m);
}

}  // namespace snug::python
