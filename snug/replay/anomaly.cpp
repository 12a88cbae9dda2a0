#include "snug/replay/anomaly.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <unordered_set>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/record/recording.h"
#include "snug/record/unseen.h"

namespace snug::replay {
namespace {

/// What is looked at is nobody's operator.
bool is_finite(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != c10::kStrided) return true;
  if (!tensor.is_floating_point() && !tensor.is_complex()) return true;
  const record::Unseen unseen;
  return at::isfinite(tensor).all().item<bool>();
}

std::string shape_of(const at::Tensor& tensor) { return fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")); }

/// What a backward node computed.
class FiniteGradients final : public torch::autograd::FunctionPostHook {
 public:
  FiniteGradients(std::string node, std::uint64_t sequence, std::weak_ptr<record::Tape> tape)
      : node_(std::move(node)), sequence_(sequence), tape_(std::move(tape)) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients,
                                            const torch::autograd::variable_list&) override {
    // Nodes of leaves may outlive the step, and take part in others.
    const auto tape = tape_.lock();
    for (std::size_t i = 0; tape && i < gradients.size(); ++i) {
      if (is_finite(gradients[i])) continue;
      const plan::OpId op = tape->calls().op_of_sequence(sequence_);
      throw_into_libtorch(
          Error(fmt::format("anomaly: in backward, {}, the gradient of {}, gave a NaN or an infinity for its input {}, "
                            "of shape {}",
                            node_, op == plan::kNoOp ? "an operator that was not recorded" : tape->calls().describe(op),
                            i, shape_of(gradients[i]))));
    }
    return gradients;
  }

 private:
  std::string node_;
  std::uint64_t sequence_;
  std::weak_ptr<record::Tape> tape_;
};

/// What `empty` returns is no result yet.
bool is_bad(const record::CallLog& calls, plan::OpId op, const at::Tensor& result) {
  return !calls.call(op).traits->uninitialized && !is_finite(result);
}

/// What an operator computed.
class FiniteResults final : public record::TapeObserver {
 public:
  [[nodiscard]] bool sees_results() const override { return true; }
  [[nodiscard]] bool sees_recording() const override { return false; }
  void made(const record::Tape& tape, plan::OpId op, const at::Tensor& result, record::Run run) override {
    if (!is_bad(tape.calls(), op, result)) return;
    throw Error(fmt::format("anomaly: in {}, {} gave a NaN or an infinity, in a result of shape {}",
                            run == record::Run::Again ? "a replay" : "forward", tape.calls().describe(op),
                            shape_of(result)));
  }
};

/// The first result that holds one.
class FirstNonFinite final : public record::TapeObserver {
 public:
  [[nodiscard]] bool sees_results() const override { return true; }
  [[nodiscard]] bool sees_recording() const override { return false; }
  void made(const record::Tape& tape, plan::OpId op, const at::Tensor& result, record::Run /*run*/) override {
    if (found_ || !is_bad(tape.calls(), op, result)) return;
    found_ = fmt::format("{}, in a result of shape {}", tape.calls().describe(op), shape_of(result));
  }
  [[nodiscard]] const std::optional<std::string>& found() const noexcept { return found_; }

 private:
  std::optional<std::string> found_;
};

}  // namespace

void watch_operators(record::Tape& tape) {
  static const auto watch = std::make_shared<FiniteResults>();  // one for all tapes: it remembers nothing
  tape.add_observer(watch);
}

void watch_backward(const torch::autograd::edge_list& roots, const std::shared_ptr<record::Tape>& tape) {
  std::vector<torch::autograd::Node*> next;
  for (const torch::autograd::Edge& root : roots) next.push_back(root.function.get());
  std::unordered_set<torch::autograd::Node*> seen(next.begin(), next.end());
  while (!next.empty()) {
    torch::autograd::Node* node = next.back();
    next.pop_back();
    if (node == nullptr) continue;
    node->add_post_hook(std::make_unique<FiniteGradients>(node->name(), node->sequence_nr(), tape));
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      if (edge.function && seen.insert(edge.function.get()).second) next.push_back(edge.function.get());
    }
  }
}

std::optional<std::string> first_non_finite(const Forward& forward) {
  const auto first = std::make_shared<FirstNonFinite>();
  {
    const at::NoGradGuard no_grad;
    const record::Recording recording(std::make_shared<record::Tape>(record::KeepSaved{}, first));
    forward();
  }
  return first->found();
}

}  // namespace snug::replay
