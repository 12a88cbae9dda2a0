// Sessions, which run steps under plans.
#include "python/bindings/sessions.h"

#include <pybind11/stl.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "python/bindings/memory.h"
#include "python/bindings/plans.h"
#include "python/bindings/steps.h"
#include "snug/base/errors.h"
#include "snug/base/patient_lock.h"
#include "snug/memory/device_memory.h"
#include "snug/replay/session.h"
#include "snug/replay/step_arena.h"
#include "snug/replay/streamed_tensors.h"

namespace snug::python {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

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

void bind_step_report(py::module_& m) {
  py::class_<Session::StepReport>(m, "StepReport", "What the latest step did.")
      .def_readonly("replayed_ops", &Session::StepReport::replayed_ops)
      .def_readonly(
          "compared_values", &Session::StepReport::compared_values,
          "Number of recomputed values whose bits were compared with those of the forward pass (fit's check).")
      .def_readonly("moved_bytes", &Session::StepReport::moved_bytes, "Out of the device's memory, as the plan says.")
      .def_readonly("compressed_bytes", &Session::StepReport::compressed_bytes, "Put there in fewer, as the plan says.")
      .def_readonly("lossy_bytes", &Session::StepReport::lossy_bytes,
                    "Of which backward got what a lossy codec had left of them.")
      .def_readonly("evictions", &Session::StepReport::evictions,
                    "Values dropped because the limit was near, not because the plan says so.")
      .def_readonly("followed_plan", &Session::StepReport::followed_plan)
      .def_readonly("divergence", &Session::StepReport::divergence,
                    "Where the step first differed from all known ones, or why it had no plan, else empty.")
      .def_readonly("known", &Session::StepReport::known, "Steps that the session has plans for.")
      .def_readonly("opaque", &Session::StepReport::opaque,
                    "What is kept because something outside of ATen filled it, with the cure.")
      .def_readonly("planned_anew", &Session::StepReport::planned_anew,
                    "The step had no plan and was recorded as it ran: it gets one.")
      .def_readonly("stopped_planning", &Session::StepReport::stopped_planning,
                    "From this step on new ones get no plans: too many came only once.")
      .def("__repr__", [](const Session::StepReport& r) {
        return "StepReport(replayed_ops=" + std::to_string(r.replayed_ops) +
               (r.moved_bytes > 0 ? ", moved_bytes=" + std::to_string(r.moved_bytes) : "") +
               (r.compressed_bytes > 0 ? ", compressed_bytes=" + std::to_string(r.compressed_bytes) : "") +
               (r.lossy_bytes > 0 ? ", lossy_bytes=" + std::to_string(r.lossy_bytes) : "") +
               ", evictions=" + std::to_string(r.evictions) +
               ", followed_plan=" + (r.followed_plan ? "True" : "False") +
               (r.divergence.empty() ? "" : ", divergence='" + r.divergence + "'") + ")";
      });
}

void bind_arena(py::module_& m) {
  using Stats = replay::StepArena::Stats;
  py::class_<Stats>(m, "ArenaStats", "What lies in a session's arena.")
      .def_readonly("bytes", &Stats::bytes, "Of the arena; 0: no two steps have asked for the same yet.")
      .def_readonly("highest", &Stats::highest, "What takes most at one time of what lies there.")
      .def_readonly("placed", &Stats::placed, "Blocks of the latest step, and after it, at their places.")
      .def_readonly("elsewhere", &Stats::elsewhere, "Others of those, as what outlives a step.")
      .def("__repr__", [](const Stats& s) {
        return "ArenaStats(bytes=" + std::to_string(s.bytes) + ", highest=" + std::to_string(s.highest) +
               ", placed=" + std::to_string(s.placed) + ", elsewhere=" + std::to_string(s.elsewhere) + ")";
      });
  m.def(
      "check_arena", [](const std::string& device) { (void)replay::StepArena::of(device_memory(device)); },
      py::arg("device"), "Raises UsageError where the device's memory needs none.");
}

void bind_session(py::module_& m) {
  py::class_<PySession>(m, "Session")
      .def(py::init([](const Kinds& kinds, std::optional<Bytes> budget, const std::string& device,
                       const NamedBudgets& others, const std::shared_ptr<Agreement>& agreement,
                       std::shared_ptr<memory::Tiers> tiers, std::shared_ptr<StreamedTensors> streamed) {
             auto made = std::make_unique<PySession>();
             made->session.emplace(kinds.all, budget_of(budget), device_memory(device), agreement, budgets_of(others));
             made->session->use(std::move(tiers));
             if (streamed) made->session->use(std::move(streamed));
             return made;
           }),
           NoGil(), py::arg("kinds"), py::arg("budget"), py::arg("device"), py::arg("others"), py::arg("agreement"),
           py::arg("tiers"), py::arg("streamed"))
      .def_static(
          "without_sample",
          [](const std::string& strategy, Bytes budget, const std::string& device, const NamedBudgets& others,
             const std::shared_ptr<Agreement>& agreement) {
            auto made = std::make_unique<PySession>();
            made->session.emplace(Session::without_sample(strategy, plan::Budget::for_limit(budget),
                                                          device_memory(device), agreement, budgets_of(others)));
            return made;
          },
          NoGil(), py::arg("strategy"), py::arg("budget"), py::arg("device"), py::arg("others"), py::arg("agreement"))
      .def("backward", &PySession::backward, py::arg("step"))
      .def("close", &PySession::close)
      .def_property_readonly("closed", [](const PySession& s) { return !s.session; })
      .def_property_readonly("planned",
                             [](PySession& s) {
                               return s.read([](Session& open) {
                                 const plan::Planner* const planner = open.planner();
                                 return std::make_tuple(open.graph(), planner ? std::optional(*planner) : std::nullopt,
                                                        open.plan());
                               });
                             })
      .def_property_readonly("predicted_peak",
                             [](PySession& s) { return s.read([](Session& open) { return open.predicted_peak(); }); })
      .def_property_readonly("last_step",
                             [](PySession& s) { return s.read([](Session& open) { return open.last_step(); }); })
      .def("verify_replays", [](PySession& s, VerifyReplay how) { s.open().verify_replays(how); })
      .def("follow_lossy_alone",
           [](PySession& s, bool alone) { s.open().follow(alone ? Follow::LossyAlone : Follow::All); })
      .def_property_readonly(
          "steps_go_backward",
          [](PySession& s) { return s.read([](Session& open) { return open.steps_go_backward(); }); })
      .def(
          "finish_searches", [](PySession& s) { s.read([](Session& open) { open.finish_searches(); }); }, NoGil())
      .def("use_arena", [](PySession& s) { s.open().use_arena(); })
      .def_property_readonly("arena", [](PySession& s) { return s.read([](Session& open) { return open.arena(); }); })
      .def("detect_anomalies",
           [](PySession& s, bool detect) { s.open().anomalies(detect ? Anomalies::Refused : Anomalies::Ignored); });
}

}  // namespace

void bind_sessions(py::module_& m) {
  bind_step_report(m);
  bind_arena(m);
  bind_session(m);
}

}  // namespace snug::python
