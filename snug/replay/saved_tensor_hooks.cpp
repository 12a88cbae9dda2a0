#include "snug/replay/saved_tensor_hooks.h"

#include <dlfcn.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/version.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/patient_lock.h"
#include "snug/record/recording.h"
#include "snug/replay/packed_tensor.h"
#include "snug/replay/rerun_frame.h"
#include "snug/replay/step_run.h"
#include "snug/replay/unpacked_originals.h"

namespace snug::replay {
namespace {

/// How the engine's interface hands a node over: LibTorch 2.13 went from std::shared_ptr to c10::intrusive_ptr.
template <class R, class C, class Node>
Node node_pointer(R (C::*)(const std::shared_ptr<torch::autograd::GraphTask>&, Node, torch::autograd::InputBuffer&&));
using NodePointer = decltype(node_pointer(&torch::autograd::Engine::execute_with_graph_task));

class Hook final : public CollectedHooks {
 public:
  explicit Hook(std::shared_ptr<record::Tape> tape) : tape_(std::move(tape)) {}

 private:
  void pack(const at::Tensor& tensor) override { packed_.emplace(std::move(tape_), tensor); }
  at::Tensor unpack() override {
    const GivenUp others_may_run;  // the kernels of a replay, on threads of their own, may need what we hold
    return packed_->unpack();
  }
  [[nodiscard]] at::Tensor original(const at::Tensor& unpacked) const override {
    const GivenUp others_may_run;  // the thread that has the tape's mutex may wait for what we hold
    return packed_->original(unpacked);
  }

  std::shared_ptr<record::Tape> tape_;
  std::optional<PackedTensor> packed_;
};

/// A step that goes forward again after a backward pass may have to be recorded from here on.
void tell_step_of_save() {
  if (record::recording_tape()) return;
  if (StepRun* const step = StepRun::here()) step->note_unrecorded_save();
}

std::unique_ptr<torch::autograd::SavedVariableHooks> hooks_of_this_thread() {
  if (const auto& frame = innermost_rerun_frame()) return frame->hooks();
  tell_step_of_save();
  const auto& tape = record::recording_tape();
  return tape ? std::make_unique<Hook>(tape) : nullptr;
}

using torch::autograd::Engine;

/// A backward pass that a step function starts where it stands ends the step's forward pass.
template <class Execute>
torch::autograd::variable_list execute_for_step(const torch::autograd::edge_list& roots, bool accumulates,
                                                const Execute& execute) {
  StepRun* step = StepRun::here();
  const auto become = accumulates ? StepRun::Gradients::Accumulated : StepRun::Gradients::Returned;
  if (step != nullptr && !step->is_backward(roots, become)) step = nullptr;
  if (step != nullptr) step->backward_begins(roots);
  torch::autograd::variable_list gradients = [&] {
    const record::GatesInBackward gates;
    return execute();
  }();
  if (step != nullptr) step->backward_ends();
  return gradients;
}

class HookedEngine final : public Engine {
 public:
  static Engine& instance() {
    static auto* engine = new HookedEngine;  // never destroyed: its threads may outlive main()
    return *engine;
  }
  ~HookedEngine() override { stop(); }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return hooks_of_this_thread();
  }
  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs, bool keep_graph,
                                         bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return execute_for_step(roots, accumulate_grad, [&] {
      return Engine::execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    });
  }
};

/// In a Python process: Python code runs on Python's engine only, which has saved-tensor hooks of its own. It goes on
/// to do all the work; what is asked of the default engine is handed on, and only the hooks come first.
class EngineInPython final : public Engine {
 public:
  static Engine& instance() {
    static auto* engine = new EngineInPython(Engine::get_default_engine());
    return *engine;
  }
  ~EngineInPython() override { stop(); }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (!record::PythonHooksOutside::any_inside()) {
      if (auto ours = hooks_of_this_thread()) return ours;
    } else if (!innermost_rerun_frame()) {
      tell_step_of_save();
    }
    return python_.get_default_saved_variable_hooks();
  }
  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs, bool keep_graph,
                                         bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return execute_for_step(roots, accumulate_grad, [&] {
      return python_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    });
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& task, NodePointer root,
      torch::autograd::InputBuffer&& input) override {
    return python_.execute_with_graph_task(task, std::move(root), std::move(input));
  }
  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return python_.make_anomaly_metadata();
  }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
  std::vector<std::unique_ptr<torch::autograd::NodeCreationHook>> get_node_creation_hooks() override {
    return python_.get_node_creation_hooks();
  }
#endif

 private:
  explicit EngineInPython(Engine& python) : python_(python) {}
  Engine& python_;
};

bool python_runs_here() {
  using IsInitialized = int (*)();
  auto* is_initialized = reinterpret_cast<IsInitialized>(::dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
  return is_initialized != nullptr && is_initialized() != 0;
}

bool is_ours(const Engine& engine) {
  return dynamic_cast<const HookedEngine*>(&engine) != nullptr ||
         dynamic_cast<const EngineInPython*>(&engine) != nullptr;
}

[[maybe_unused]] const bool kInstalled = (install_saved_tensor_hooks(), true);

}  // namespace

void install_saved_tensor_hooks() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (python_runs_here()) {
      EngineInPython::instance();  // remembers Python's, before its own place is taken
      torch::autograd::set_default_engine_stub(&EngineInPython::instance);
    } else {
      torch::autograd::set_default_engine_stub(&HookedEngine::instance);
    }
  });
}

void require_saved_tensor_hooks() {
  if (record::recording_key_is_taken()) {
    throw Error(
        "snug: another library, or a newer LibTorch, handles all operators at the dispatch key Fake, by which snug "
        "records "
        "them; load snug first, or use a LibTorch that this version of snug supports");
  }
  if (is_ours(Engine::get_default_engine())) return;
  throw Error(
      "snug: another library has replaced the autograd engine since snug was loaded, so that nothing can be dropped; "
      "load snug after it (in Python: import snug after torch), or leave its engine out");
}

}  // namespace snug::replay
