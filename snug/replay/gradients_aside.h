#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "snug/record/trial_gradients.h"

namespace snug::replay {

/// Puts gradients aside, and back at the end of the scope, with what runs when one has arrived, which may be an
/// optimizer. Keeps no parameter alive: leaves that a step makes, such as the inputs of a pipeline's stage, may go, and
/// their gradients with them.
class GradientsAside {
 public:
  explicit GradientsAside(const std::vector<at::Tensor>& parameters) { put(parameters); }
  ~GradientsAside() {
    for (Aside& a : aside_) {
      const at::Tensor parameter(a.parameter.lock());
      if (!parameter.defined()) continue;
      parameter.mutable_grad() = std::move(a.gradient);
      torch::autograd::impl::post_acc_grad_hooks(parameter) = std::move(a.hooks);
    }
  }
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;

  /// Those that have not been put aside before.
  void put(const std::vector<at::Tensor>& parameters) {
    for (const at::Tensor& p : parameters) {
      if (!known_.insert(p.unsafeGetTensorImpl()).second) continue;
      trial_.add(p);
      aside_.push_back({Weak(p.getIntrusivePtr()), std::exchange(p.mutable_grad(), at::Tensor()),
                        std::exchange(torch::autograd::impl::post_acc_grad_hooks(p), nullptr)});
    }
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Aside {
    Weak parameter;
    at::Tensor gradient;
    std::unique_ptr<torch::autograd::PostAccumulateGradHook> hooks;
  };
  record::TrialGradients trial_;
  std::vector<Aside> aside_;
  std::unordered_set<const void*> known_;
};

}  // namespace snug::replay
