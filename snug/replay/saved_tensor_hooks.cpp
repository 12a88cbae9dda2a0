#include "snug/replay/saved_tensor_hooks.h"

#include <dlfcn.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "snug/base/errors.h"
#include "snug/record/recording.h"
#include "snug/replay/packed_tensor.h"
#include "snug/replay/rerun_frame.h"

namespace snug::replay {
namespace {

class Hook final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Hook(std::shared_ptr<record::Tape> tape) : tape_(std::move(tape)) {}
  void call_pack_hook(const at::Tensor& tensor) override { packed_.emplace(std::move(tape_), tensor); }
  at::Tensor call_unpack_hook() override { return packed_->unpack(); }

 private:
  std::shared_ptr<record::Tape> tape_;
  std::optional<PackedTensor> packed_;
};

class HookedEngine final : public torch::autograd::Engine {
 public:
  static torch::autograd::Engine& instance() {
    static auto* engine = new HookedEngine;  // never destroyed: its threads may outlive main()
    return *engine;
  }
  ~HookedEngine() override { stop(); }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (const auto& frame = innermost_rerun_frame()) return frame->hooks();
    const auto& tape = record::recording_tape();
    return tape ? std::make_unique<Hook>(tape) : nullptr;
  }
};

/// Python's engine has hooks of its own, and Python code cannot run on another engine.
bool python_runs_here() {
  using IsInitialized = int (*)();
  auto* is_initialized = reinterpret_cast<IsInitialized>(::dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
  return is_initialized != nullptr && is_initialized() != 0;
}

[[maybe_unused]] const bool kInstalled = (install_saved_tensor_hooks(), true);

}  // namespace

void install_saved_tensor_hooks() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (!python_runs_here()) torch::autograd::set_default_engine_stub(&HookedEngine::instance);
  });
}

void require_saved_tensor_hooks() {
  if (&torch::autograd::Engine::get_default_engine() == &HookedEngine::instance()) return;
  throw Error(
      python_runs_here()
          ? "snug: autograd runs on Python's engine here, which does not know of snug's saved-tensor hooks: use the "
            "Python package"
          : "snug: another library has replaced the autograd engine since snug was loaded, so that nothing can be "
            "dropped; load snug after it, or leave its engine out");
}

}  // namespace snug::replay
