#include "snug/replay/saved_tensor_hooks.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <mutex>
#include <utility>

#include "snug/base/errors.h"
#include "snug/record/leaf_names.h"
#include "snug/record/profiler.h"
#include "snug/record/recording.h"
#include "snug/replay/executor.h"

namespace snug::replay {
namespace {

constexpr int kNoPass = -1;

class Hook final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Hook(std::shared_ptr<record::Tape> tape) : tape_(std::move(tape)) {}

  ~Hook() override {
    if (on_tape_) tape_->forget(saved_, consumed_in_ != kNoPass && consumed_in_ == tape_->backward_pass());
  }

  void call_pack_hook(const at::Tensor& tensor) override {
    on_tape_ = tape_->save(tensor, saved_);
    if (!on_tape_) kept_ = tensor.detach();  // not the variable itself: it would keep its own graph alive
  }

  at::Tensor call_unpack_hook() override {
    if (!on_tape_) return kept_;
    const std::lock_guard lock(tape_->mutex());
    if (!saved_.bound) tape_->bind_all();
    const plan::ValueId value = saved_.view.value;
    check_version(value);
    const int pass = torch::autograd::get_current_graph_task_id();
    if (pass != kNoPass && tape_->enter_pass(pass)) {
      torch::autograd::Engine::get_default_engine().queue_callback([tape = std::weak_ptr(tape_)] {
        if (const auto alive = tape.lock()) alive->leave_pass();
      });
    }
    plan::Ledger& ledger = tape_->ledger();
    if (const plan::OpId producer = tape_->flow().producer(value); producer != plan::kNoOp) tape_->move_to(producer);
    if (!ledger.resident(value)) materialize(*tape_, value);
    at::Tensor tensor = tape_->geometry().tensor(saved_.view, tape_->storage(value));
    if (pass == kNoPass) {
      ledger.end_pass();  // somebody looks at a saved tensor outside of backward
    } else if (consumed_in_ != pass) {
      consumed_in_ = pass;
      ledger.consume(value);
    }
    if (record::Profiler* profiler = tape_->profiler()) profiler->unpacked(value, ledger.resident(value));
    return tensor;
  }

 private:
  void check_version(plan::ValueId value) const {
    if (!saved_.versioned || saved_.version.current_version() == saved_.seen_version) return;
    throw Error(fmt::format(
        "backward: {}, which an operator saved for its gradient, was modified in place since (version {} then, {} "
        "now): the gradient would be wrong; modify it after backward, or a clone of it",
        tape_->name_of(value), saved_.seen_version, saved_.version.current_version()));
  }

  std::shared_ptr<record::Tape> tape_;
  record::SavedTensor saved_;
  at::Tensor kept_;
  bool on_tape_ = false;
  int consumed_in_ = kNoPass;
};

class HookedEngine final : public torch::autograd::Engine {
 public:
  static torch::autograd::Engine& instance() {
    static auto* engine = new HookedEngine;  // never destroyed: its threads may outlive main()
    return *engine;
  }
  ~HookedEngine() override { stop(); }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    const auto& tape = record::recording_tape();
    return tape ? std::make_unique<Hook>(tape) : nullptr;
  }
};

[[maybe_unused]] const bool kInstalled = (install_saved_tensor_hooks(), true);

}  // namespace

void install_saved_tensor_hooks() {
  static std::once_flag once;
  std::call_once(once, [] { torch::autograd::set_default_engine_stub(&HookedEngine::instance); });
}

}  // namespace snug::replay
