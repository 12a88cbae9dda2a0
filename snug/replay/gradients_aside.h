#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "snug/record/trial_gradients.h"

namespace snug::replay {

/// Puts gradients aside, and back at the end of the scope, with what runs when one has arrived, which may be an
/// optimizer.
class GradientsAside {
 public:
  explicit GradientsAside(const std::vector<at::Tensor>& parameters) { put(parameters); }
  ~GradientsAside() {
    for (Aside& a : aside_) {
      a.parameter.mutable_grad() = std::move(a.gradient);
      torch::autograd::impl::post_acc_grad_hooks(a.parameter) = std::move(a.hooks);
    }
  }
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;

  /// Those that have not been put aside before.
  void put(const std::vector<at::Tensor>& parameters) {
    for (const at::Tensor& p : parameters) {
      if (!known_.insert(p.unsafeGetTensorImpl()).second) continue;
      trial_.add(p);
      aside_.push_back({p, std::exchange(p.mutable_grad(), at::Tensor()),
                        std::exchange(torch::autograd::impl::post_acc_grad_hooks(p), nullptr)});
    }
  }

 private:
  struct Aside {
    at::Tensor parameter, gradient;
    std::unique_ptr<torch::autograd::PostAccumulateGradHook> hooks;
  };
  record::TrialGradients trial_;
  std::vector<Aside> aside_;
  std::unordered_set<const void*> known_;
};

}  // namespace snug::replay
