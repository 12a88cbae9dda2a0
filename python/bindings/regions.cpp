// Regions, module scopes and reruns.
#include "python/bindings/regions.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python/bindings/errors.h"
#include "snug/base/errors.h"
#include "snug/base/module_scope.h"
#include "snug/record/declared_operators.h"
#include "snug/record/leaf_names.h"
#include "snug/record/recording.h"
#include "snug/replay/region.h"
#include "snug/replay/rerun_frame.h"
#include "snug/replay/saved_tensor_hooks.h"

namespace snug::python {
namespace {

namespace py = pybind11;

/// A Python callable that C++ keeps: called and let go of with the GIL, from any thread.
std::shared_ptr<py::function> kept(py::function function) {
  return {new py::function(std::move(function)), [](py::function* f) {
            const py::gil_scoped_acquire gil;
            delete f;
          }};
}

/// With names of its own, which a policy may keep.
struct PyOperatorContext {
  std::string name, module;
  std::int64_t invocation = 0;
};

SelectivePolicy policy_of(py::function ask) {
  return [ask = kept(std::move(ask))](const OperatorContext& context) {
    const py::gil_scoped_acquire gil;
    try {
      return (*ask)(PyOperatorContext{std::string(context.name), std::string(context.module), context.invocation})
          .cast<Choice>();
    } catch (py::error_already_set& error) {
      pass_on(error);
    } catch (const py::cast_error&) {
      throw UsageError("region: the policy must return a snug.Choice");
    }
  };
}

RegionAction action_of(const py::object& action) {
  if (py::isinstance<Offload>(action)) return action.cast<Offload>();
  if (py::isinstance<Selective>(action)) return action.cast<Selective>();
  if (py::isinstance<Keep>(action)) return Keep{};
  if (py::isinstance<Recompute>(action)) return Recompute{};
  if (PyCallable_Check(action.ptr()) != 0 && !PyType_Check(action.ptr())) return policy_of(action.cast<py::function>());
  throw UsageError("region: the action is " + py::repr(action).cast<std::string>() +
                   "; give Recompute(), Keep(), Offload(), Selective() or a function from OperatorContext to Choice");
}

/// A region that is open from the start. What it tells stays when it is over.
class PyRegion {
 public:
  PyRegion(const py::object& action, VerifyReplay verify, bool detect_anomalies, std::uint64_t place)
      : region_(action_of(action), RegionOptions{verify, place, detect_anomalies}) {}

  void exit() {
    region_.close();
    at_exit_ = region_.saved_tensors();
  }
  py::dict saved_tensors() const {
    py::dict dict;
    dict["dropped"] = at_exit_.dropped;
    dict["kept"] = at_exit_.kept;
    dict["leaf"] = at_exit_.leaves;
    dict["layout"] = at_exit_.layout;
    return dict;
  }
  const Region& region() const { return region_; }

 private:
  Region region_;
  record::SavedCounts at_exit_;
};

class PyUnrecorded {
 public:
  PyUnrecorded(std::vector<at::Tensor> written, std::vector<at::Tensor> maybe_written)
      : written_(std::move(written)), maybe_written_(std::move(maybe_written)) {}
  void enter() { scope_.emplace(std::exchange(written_, {}), std::exchange(maybe_written_, {})); }
  void exit() { scope_.reset(); }

 private:
  std::vector<at::Tensor> written_, maybe_written_;
  std::optional<record::Unrecorded> scope_;
};

class PyGatesInBackward {
 public:
  void enter() { scope_.emplace(); }
  void exit() { scope_.reset(); }

 private:
  std::optional<record::GatesInBackward> scope_;
};

class PyModuleScope {
 public:
  explicit PyModuleScope(std::string name) : name_(std::move(name)) {}
  void enter() { scopes_.push_back(std::make_unique<ModuleScope>(name_)); }
  void exit() {
    if (!scopes_.empty()) scopes_.pop_back();
  }

 private:
  std::string name_;
  std::vector<std::unique_ptr<ModuleScope>> scopes_;  // entered again inside of itself
};

/// The scope around a function's call in forward, which backward calls again.
class PyRerunScope {
 public:
  /// `call` takes the tensors in the order of `arguments`.
  PyRerunScope(py::function call, std::vector<at::Tensor> arguments, Rerun options)
      : call_(std::move(call)), arguments_(std::move(arguments)), options_(options) {}

  void enter() {
    if (!at::GradMode::is_enabled()) return;
    replay::require_saved_tensor_hooks();
    const auto again = [call = kept(call_)](const std::vector<at::Tensor>& tensors) {
      const py::gil_scoped_acquire gil;
      try {
        (*call)(tensors);
      } catch (py::error_already_set& error) {
        pass_on(error);
      }
    };
    scope_.emplace(std::make_shared<replay::RerunFrame>(again, arguments_, options_));
    arguments_.clear();
  }
  void exit() { scope_.reset(); }

 private:
  py::function call_;
  std::vector<at::Tensor> arguments_;
  Rerun options_;
  std::optional<replay::RerunFrameScope> scope_;
};

void bind_declarations(py::module_& m) {
  m.def(
      "declare_operator",
      [](const std::string& name, const std::vector<int>& writes, std::optional<int> writes_only_if,
         std::optional<int> scratch_result, std::optional<bool> draws, std::optional<bool> keeps_state) {
        record::declare_operator({name, writes, writes_only_if, scratch_result, draws, keeps_state});
      },
      py::arg("name"), py::arg("writes"), py::arg("writes_only_if"), py::arg("scratch_result"), py::arg("draws"),
      py::arg("keeps_state"));
}

/// What snug.actions converts its classes to.
void bind_actions(py::module_& m) {
  py::class_<Keep>(m, "Keep").def(py::init<>());
  py::class_<Recompute>(m, "Recompute").def(py::init<>());
  py::class_<Offload>(m, "Offload")
      .def(py::init([](Bytes min_bytes) { return Offload{min_bytes}; }), py::kw_only(), py::arg("min_bytes"));
  py::class_<Selective>(m, "Selective")
      .def(py::init([](std::vector<std::string> keep, std::vector<std::string> keep_modules) {
             return Selective{std::move(keep), std::move(keep_modules)};
           }),
           py::kw_only(), py::arg("keep"), py::arg("keep_modules"));
}

}  // namespace

void bind_regions(py::module_& m) {
  bind_declarations(m);
  bind_actions(m);
  py::enum_<Choice>(m, "Choice", "What a policy says of the results of one operator.")
      .value("PreferRecompute", Choice::PreferRecompute)
      .value("PreferKeep", Choice::PreferKeep)
      .value("MustRecompute", Choice::MustRecompute)
      .value("MustKeep", Choice::MustKeep)
      .value("Offload", Choice::Offload);
  py::enum_<VerifyReplay>(m, "VerifyReplay")
      .value("Off", VerifyReplay::Off)
      .value("Once", VerifyReplay::Once)
      .value("Hashes", VerifyReplay::Hashes)
      .value("Values", VerifyReplay::Values);
  py::enum_<DeterminismCheck>(m, "DeterminismCheck")
      .value("NoCheck", DeterminismCheck::None)
      .value("Metadata", DeterminismCheck::Metadata)
      .value("Values", DeterminismCheck::Values);
  py::class_<PyOperatorContext>(m, "OperatorContext", "The operator that a policy is asked about, as it runs.")
      .def_readonly("name", &PyOperatorContext::name, "With its overload: \"aten::addmm\", \"aten::add.Tensor\".")
      .def_readonly("module", &PyOperatorContext::module, "The path of ModuleScope.")
      .def_readonly("invocation", &PyOperatorContext::invocation,
                    "How many operators of this name ran before in the region.");
  py::class_<PyRegion>(m, "Region")
      .def(py::init<py::object, VerifyReplay, bool, std::uint64_t>(), py::arg("action"), py::arg("verify_replay"),
           py::arg("detect_anomalies"), py::arg("place") = 0)
      .def_static("check", [](const py::object& action) { action_of(action); })
      .def("exit", &PyRegion::exit)
      .def_property_readonly("replayed_ops", [](const PyRegion& r) { return r.region().replayed_ops(); })
      .def_property_readonly("saved_tensors", &PyRegion::saved_tensors)
      .def_property_readonly("offloaded_bytes", [](const PyRegion& r) { return r.region().offloaded_bytes(); })
      .def_property_readonly("opaque_values", [](const PyRegion& r) { return r.region().opaque_values(); });
  py::class_<PyGatesInBackward>(m, "GatesInBackward")
      .def(py::init<>())
      .def("__enter__", &PyGatesInBackward::enter)
      .def("__exit__", [](PyGatesInBackward& scope, const py::args&) { scope.exit(); });
  m.def("any_tape", [] { return record::Tape::alive() > 0; });
  m.def(
      "announce_writes",
      [](const std::vector<at::Tensor>& tensors) {
        for (const at::Tensor& tensor : tensors) {
          if (tensor.defined() && tensor.has_storage()) record::OperatorGate::tell_before_write(tensor);
        }
      },
      py::arg("tensors"));
  m.def(
      "without_recording_key",
      [](std::uint64_t keys) {
        return (c10::DispatchKeySet(c10::DispatchKeySet::RAW, keys) - c10::DispatchKeySet(record::kRecordingKey))
            .raw_repr();
      },
      py::arg("keys"));
  py::class_<PyUnrecorded>(m, "Unrecorded")
      .def(py::init<std::vector<at::Tensor>, std::vector<at::Tensor>>(), py::arg("written"),
           py::arg("maybe_written") = std::vector<at::Tensor>())
      .def("__enter__", &PyUnrecorded::enter)
      .def("__exit__", [](PyUnrecorded& scope, const py::args&) { scope.exit(); });
  py::class_<PyModuleScope>(m, "ModuleScope")
      .def(py::init<std::string>())
      .def("enter", &PyModuleScope::enter)
      .def("exit", &PyModuleScope::exit);
  m.def("name_tensors", &record::name_tensors, py::arg("names"));
  py::class_<PyRerunScope>(m, "RerunScope")
      .def(py::init([](py::function call, std::vector<at::Tensor> arguments, bool preserve_rng_state,
                       DeterminismCheck check, bool debug, bool early_stop) {
             return std::make_unique<PyRerunScope>(std::move(call), std::move(arguments),
                                                   Rerun{preserve_rng_state, check, debug, early_stop});
           }),
           py::arg("call"), py::arg("arguments"), py::arg("preserve_rng_state"), py::arg("determinism_check"),
           py::arg("debug"), py::arg("early_stop"))
      .def("enter", &PyRerunScope::enter)
      .def("exit", &PyRerunScope::exit);
}

}  // namespace snug::python
