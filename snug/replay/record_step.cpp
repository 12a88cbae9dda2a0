#include "snug/replay/record_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <unordered_set>
#include <utility>

#include "snug/base/errors.h"
#include "snug/memory/tag.h"
#include "snug/record/profiler.h"
#include "snug/record/recording.h"
#include "snug/replay/abandoned_tasks.h"
#include "snug/replay/record_evicting.h"
#include "snug/replay/saved_tensor_hooks.h"

namespace snug::replay {
namespace {

/// The leaves that backward may give gradients to: those at the end of the loss's autograd graph, and those that the
/// forward pass has read, as a function that differentiates in backward for itself hides what it is made of.
std::vector<at::Tensor> leaves_of(const at::Tensor& loss, const std::vector<at::Tensor>& read) {
  std::vector<at::Tensor> leaves;
  std::unordered_set<const torch::autograd::Node*> seen;
  std::unordered_set<const void*> known;
  std::vector<torch::autograd::Node*> stack{loss.grad_fn().get()};
  while (!stack.empty()) {
    torch::autograd::Node* node = stack.back();
    stack.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (auto* accumulate = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) leaves.push_back(accumulate->variable);
    for (const auto& edge : node->next_edges()) stack.push_back(edge.function.get());
  }
  for (const at::Tensor& leaf : leaves) known.insert(leaf.unsafeGetTensorImpl());
  for (const at::Tensor& leaf : read) {
    // What was a leaf when it was read may have been written in place since.
    if (leaf.is_leaf() && known.insert(leaf.unsafeGetTensorImpl()).second) leaves.push_back(leaf);
  }
  return leaves;
}

/// Puts gradients aside, and back at the end of the scope; and what runs when one has arrived, which may be an
/// optimizer.
class GradientsAside {
 public:
  explicit GradientsAside(const std::vector<at::Tensor>& parameters) {
    for (const at::Tensor& p : parameters) {
      aside_.push_back({p, std::exchange(p.mutable_grad(), at::Tensor()),
                        std::exchange(torch::autograd::impl::post_acc_grad_hooks(p), nullptr)});
    }
  }
  ~GradientsAside() {
    for (Aside& a : aside_) {
      a.parameter.mutable_grad() = std::move(a.gradient);
      torch::autograd::impl::post_acc_grad_hooks(a.parameter) = std::move(a.hooks);
    }
  }
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;

 private:
  struct Aside {
    at::Tensor parameter, gradient;
    std::unique_ptr<torch::autograd::PostAccumulateGradHook> hooks;
  };
  std::vector<Aside> aside_;
};

at::Tensor bytes_of(const c10::Storage& storage) {
  const auto size = static_cast<std::int64_t>(storage.nbytes());
  return at::empty({0}, at::TensorOptions(at::kByte).device(storage.device())).set_(storage, 0, {size}, {1});
}

/// Contents that recorded operators overwrote, and the random generators, as they were before the step.
class SideEffects {
 public:
  SideEffects() {
    for (at::Generator& generator : record::default_generators())
      random_.push_back(record::save_random_state(std::move(generator)));
  }
  ~SideEffects() {
    const at::NoGradGuard no_grad;
    for (const auto& [original, before] : overwritten) bytes_of(original).copy_(bytes_of(before));
    for (const record::RandomState& r : random_) record::restore(r);
  }
  SideEffects(const SideEffects&) = delete;
  SideEffects& operator=(const SideEffects&) = delete;

  std::vector<std::pair<c10::Storage, c10::Storage>> overwritten;

 private:
  std::vector<record::RandomState> random_;
};

RecordedStep record_once(EvictionCost cost, const Forward& forward, memory::DeviceMemory& memory,
                         const Rehearsal& update, std::vector<c10::Storage>* leaves = nullptr) {
  const Bytes before = memory.stats().allocated;
  SideEffects effects;
  record::Profiler profiler(memory, memory.stats().allocated - before);
  const auto tape = std::make_shared<record::Tape>(record::KeepSaved{}, &profiler);
  struct Detach {
    record::Tape& tape;
    ~Detach() { tape.detach_profiler(); }
  } const detach{*tape};
  const Evictor evictor(tape, memory, cost);
  RecordedStep step;
  at::Tensor loss;
  {
    const record::Recording recording(tape);
    const memory::TagScope tag(memory::Tag::Activations);
    try {
      loss = forward();
      check_loss(loss);
    } catch (...) {
      effects.overwritten = tape->overwritten_leaves();
      throw;
    }
  }
  effects.overwritten = tape->overwritten_leaves();
  tape->finish();
  if (leaves != nullptr) *leaves = tape->leaf_storages();
  step.parameters = leaves_of(loss, profiler.leaves());
  std::erase_if(step.parameters, [&](const at::Tensor& leaf) { return tape->made(leaf); });
  {
    const GradientsAside aside(step.parameters);
    run_backward(loss);
    loss = at::Tensor();
    step.graph = profiler.finish(*tape, update);
  }
  return step;
}

}  // namespace

void check_loss(const at::Tensor& loss) {
  if (!loss.defined()) throw UsageError("step: it returned an undefined tensor; return the loss");
  if (loss.numel() != 1) {
    throw UsageError(
        fmt::format("step: it returned a tensor of {} elements; return a loss of one element", loss.numel()));
  }
  if (!loss.requires_grad()) {
    throw UsageError("step: the loss does not require a gradient; no parameter took part, or gradient mode is off");
  }
}

RecordedStep record_step(const Forward& forward, memory::DeviceMemory& memory, const Rehearsal& update) {
  return record_step_evicting(EvictionCost::Timeless, forward, memory, update);
}

RecordedStep record_step_evicting(EvictionCost cost, const Forward& forward, memory::DeviceMemory& memory,
                                  const Rehearsal& update) {
  require_saved_tensor_hooks();
  // The first run pays for page faults and the kernels' own set-up.
  std::vector<c10::Storage> leaves;
  const plan::StepGraph first = record_once(cost, forward, memory, update, &leaves).graph;
  // What is older than the allocator counts from here on.
  for (const c10::Storage& leaf : leaves) memory.adopt(leaf);
  leaves.clear();
  RecordedStep step = record_once(cost, forward, memory, update);
  if (first.fingerprint() != step.graph.fingerprint()) return step;
  for (std::size_t i = 0; i < step.graph.ops.size(); ++i) {
    step.graph.ops[i].seconds = std::min(step.graph.ops[i].seconds, first.ops[i].seconds);
  }
  step.graph.step_seconds = std::min(step.graph.step_seconds, first.step_seconds);
  step.graph.update_seconds = std::min(step.graph.update_seconds, first.update_seconds);
  return step;
}

}  // namespace snug::replay
