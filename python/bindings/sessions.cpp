// Recorded steps, plans, and the sessions that run under them.
#include "python/bindings/sessions.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/bindings/errors.h"
#include "snug/base/errors.h"
#include "snug/base/patient_lock.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/held_limit.h"
#include "snug/plan/bound/lower_bound.h"
#include "snug/plan/plan_file.h"
#include "snug/plan/planner.h"
#include "snug/plan/run/explanation.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/replay/fit.h"
#include "snug/replay/session.h"
#include "snug/replay/step_run.h"
#include "snug/replay/undone_draws.h"

namespace snug::python {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

/// The Python step as the core calls it: without the GIL.
replay::Forward forward_of(const py::function& step) {
  return [&step]() -> at::Tensor {
    const py::gil_scoped_acquire gil;
    try {
      const py::object loss = step();
      const replay::StepRun* run = replay::StepRun::here();
      if (loss.is_none() && run != nullptr && run->went_backward()) return {};
      if (!THPVariable_Check(loss.ptr())) {
        throw UsageError("step: it returned a " + py::str(py::type::of(loss)).cast<std::string>() +
                         "; return the loss, a tensor of one element");
      }
      return THPVariable_Unpack(loss.ptr());
    } catch (py::error_already_set& error) {
      pass_on(error);
    }
  };
}

/// An object with run(), which tells whether there was anything to run, and forget().
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
  rehearsal.run = [call] { return call("run"); };
  rehearsal.forget = [call] { call("forget"); };
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

/// replay::UndoneDraws as a Python context.
class UndoneDraws {
 public:
  void enter() { scope_.emplace(); }
  void exit() { scope_.reset(); }

 private:
  std::optional<replay::UndoneDraws> scope_;
};

/// Whether a step function that runs on this thread goes backward by this.
bool backward_begins(const std::vector<at::Tensor>& roots) {
  replay::StepRun* step = replay::StepRun::here();
  if (step == nullptr) return false;
  replay::StepRun::Roots edges;
  for (const at::Tensor& root : roots) edges.push_back(torch::autograd::impl::gradient_edge(root));
  step->backward_begins(edges);
  return true;
}

void backward_ends() {
  if (replay::StepRun* step = replay::StepRun::here()) step->backward_ends();
}

void update_begins() {
  if (replay::StepRun* step = replay::StepRun::here()) step->update_begins();
}

using Recorded = std::shared_ptr<replay::RecordedStep>;

Recorded record_step(const py::function& step, const std::string& device, std::optional<Bytes> limit,
                     const py::object& update) {
  const replay::Forward forward = forward_of(step);
  const replay::RecordOptions options{.update = rehearsal_of(update), .until = replay::RecordUntil::UpdateBegins};
  const py::gil_scoped_release release;
  memory::DeviceMemory& memory = memory::device_memory(c10::Device(device));
  if (limit) {
    return std::make_shared<replay::RecordedStep>(replay::record_step_within(*limit, forward, memory, options));
  }
  const memory::HeldLimit none(memory, std::nullopt);  // another session's is not this step's
  return std::make_shared<replay::RecordedStep>(replay::record_step(forward, memory, options));
}

std::optional<plan::Budget> budget_of(std::optional<Bytes> bytes) {
  if (!bytes) return std::nullopt;
  return plan::Budget::for_limit(*bytes);
}

struct PySession {
  std::optional<Session> session;
  std::atomic<bool> running = false;
  std::recursive_mutex mutex;  // of the session: a step runs without the GIL

  /// For other threads than the one that runs a step: waits until it is over.
  template <class Read>
  auto read(Read&& read) {
    const PatientLock lock(mutex);
    return read(open());
  }

  Session& open() {
    if (!session) throw UsageError("session: it has been closed; make another one with snug.fit");
    return *session;
  }
  at::Tensor backward(const py::function& step) {
    Session& s = open();
    if (running.exchange(true)) throw UsageError("session: a step of it is running; one at a time");
    struct Done {
      std::atomic<bool>& running;
      ~Done() { running = false; }
    } const done{running};
    const replay::Forward forward = forward_of(step);
    const PatientLock lock(mutex);
    const py::gil_scoped_release release;
    return s.backward(forward);
  }
  void close() {
    if (running) throw UsageError("session: a step of it is running; close it afterwards");
    session.reset();
  }
};

py::dict to_dict(const plan::Share& share) {
  py::dict dict;
  dict["name"] = share.name;
  dict["kept_bytes"] = share.kept;
  dict["moved_bytes"] = share.moved;
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

}  // namespace

void bind_sessions(py::module_& m) {
  // The graph by value: whoever has it does not keep the parameters alive.
  py::class_<replay::RecordedStep, Recorded>(m, "RecordedStep")
      .def_property_readonly("graph", [](const replay::RecordedStep& s) { return s.graph; })
      .def_property_readonly("devices", [](const replay::RecordedStep& s) {
        std::set<std::string> devices;
        for (const at::Tensor& p : s.parameters)
          devices.insert(c10::DeviceTypeName(p.device().type(), /*lower_case=*/true));
        return devices;
      });
  m.def("record_step", &record_step, py::arg("step"), py::arg("device"), py::arg("limit"), py::arg("update"));

  py::class_<plan::StepGraph>(m, "StepGraph")
      .def_property_readonly("operators", [](const plan::StepGraph& g) { return g.ops.size(); })
      .def_readonly("step_seconds", &plan::StepGraph::step_seconds)
      .def_readonly("static_bytes", &plan::StepGraph::static_bytes)
      .def("to_json", [](const plan::StepGraph& g) { return to_json(g).dump(); })
      .def_static("from_json", [](const std::string& text) {
        return plan::step_graph_from_json(nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false));
      });

  py::class_<plan::MemoryPlan>(m, "MemoryPlan")
      .def_readonly("strategy", &plan::MemoryPlan::strategy)
      .def_readonly("budget", &plan::MemoryPlan::budget)
      .def_readonly("predicted_peak", &plan::MemoryPlan::predicted_peak)
      .def_readonly("unplanned_peak", &plan::MemoryPlan::unplanned_peak)
      .def_readonly("predicted_seconds", &plan::MemoryPlan::predicted_seconds)
      .def_readonly("unplanned_seconds", &plan::MemoryPlan::unplanned_seconds)
      .def("__eq__", [](const plan::MemoryPlan& a, const plan::MemoryPlan& b) { return a == b; });

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

  m.def("backward_begins", &backward_begins, NoGil(), py::arg("roots"));
  m.def("backward_ends", &backward_ends, NoGil());
  m.def("update_begins", &update_begins, NoGil());
  py::class_<UndoneDraws>(m, "UndoneDraws")
      .def(py::init<>())
      .def("__enter__", &UndoneDraws::enter)
      .def("__exit__", [](UndoneDraws& scope, const py::args&) { scope.exit(); });
  py::class_<StopBeforeWrites>(m, "StopBeforeWrites")
      .def(py::init<std::vector<at::Tensor>>(), py::arg("tensors"))
      .def("enter", &StopBeforeWrites::enter)
      .def("exit", &StopBeforeWrites::exit);

  m.def("share_of", [](double share, Bytes peak) { return plan::Budget::for_share(share, peak).device; });
  m.def("unplanned_peak", [](const plan::StepGraph& graph) { return plan::plan_none(graph).predicted_peak; });
  m.def("explain", &explain, py::arg("graph"), py::arg("plan"));
  m.def(
      "lower_bound",
      [](const plan::StepGraph& graph, std::optional<Bytes> budget) {
        const auto limit = budget_of(budget);
        const plan::LowerBound bound =
            plan::lower_bound(graph, limit ? limit->for_blocks() : plan::plan_none(graph).predicted_peak);
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
      "write_plan",
      [](const std::string& path, const plan::StepGraph& graph, const plan::MemoryPlan& plan) {
        plan::write_plan(path, plan::plan_file_for(graph, plan));
      },
      py::arg("path"), py::arg("graph"), py::arg("plan"));

  py::class_<Session::StepReport>(m, "StepReport", "What the latest step did.")
      .def_readonly("replayed_ops", &Session::StepReport::replayed_ops)
      .def_readonly("evictions", &Session::StepReport::evictions,
                    "Values dropped because the limit was near, not because the plan says so.")
      .def_readonly("followed_plan", &Session::StepReport::followed_plan)
      .def_readonly("divergence", &Session::StepReport::divergence,
                    "Where the step first differed from all known ones, else empty.")
      .def_readonly("known", &Session::StepReport::known, "Steps that the session has plans for.")
      .def_readonly("opaque", &Session::StepReport::opaque,
                    "What is kept because something outside of ATen filled it, with the cure.")
      .def_readonly("planned_anew", &Session::StepReport::planned_anew)
      .def("__repr__", [](const Session::StepReport& r) {
        return "StepReport(replayed_ops=" + std::to_string(r.replayed_ops) +
               ", evictions=" + std::to_string(r.evictions) +
               ", followed_plan=" + (r.followed_plan ? "True" : "False") +
               (r.divergence.empty() ? "" : ", divergence='" + r.divergence + "'") + ")";
      });

  py::class_<PySession>(m, "Session")
      .def(py::init([](const Recorded& step, const plan::Planner& planner, std::optional<Bytes> budget,
                       const std::string& device, std::optional<Bytes> host) {
             auto made = std::make_unique<PySession>();
             made->session.emplace(*step, planner, budget_of(budget), memory::device_memory(c10::Device(device)));
             if (host) made->session->limit_host(*host);
             return made;
           }),
           NoGil(), py::arg("step"), py::arg("planner"), py::arg("budget"), py::arg("device"), py::arg("host"))
      .def("backward", &PySession::backward, py::arg("step"))
      .def("close", &PySession::close)
      .def_property_readonly("closed", [](const PySession& s) { return !s.session; })
      .def_property_readonly(
          "planned",
          [](PySession& s) {
            return s.read([](Session& open) { return std::make_tuple(open.graph(), open.planner(), open.plan()); });
          })
      .def_property_readonly("last_step",
                             [](PySession& s) { return s.read([](Session& open) { return open.last_step(); }); })
      .def("verify_replays", [](PySession& s, VerifyReplay how) { s.open().verify_replays(how); })
      .def("detect_anomalies",
           [](PySession& s, bool detect) { s.open().anomalies(detect ? Anomalies::Refused : Anomalies::Ignored); });
}

}  // namespace snug::python
