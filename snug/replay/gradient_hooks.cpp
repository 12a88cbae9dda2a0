#include "snug/replay/gradient_hooks.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace snug::replay {
namespace {

using torch::autograd::PostAccumulateGradHook;
using torch::autograd::impl::post_acc_grad_hooks;

class UseGradient final : public PostAccumulateGradHook {
 public:
  UseGradient(std::unique_ptr<PostAccumulateGradHook> before, GradientHooks::Use use, GradientHooks::For what)
      : before_(std::move(before)), use_(std::move(use)), what_(what) {}
  void operator()(const torch::autograd::Variable& leaf) override {
    if (before_) (*before_)(leaf);
    const at::NoGradGuard no_grad;
    use_(leaf);
  }
  std::unique_ptr<PostAccumulateGradHook> take_before() { return std::move(before_); }
  [[nodiscard]] static bool updates(const PostAccumulateGradHook* hook) {
    const auto* const own = dynamic_cast<const UseGradient*>(hook);
    return own != nullptr && (own->what_ == GradientHooks::For::Updates || updates(own->before_.get()));
  }

 private:
  std::unique_ptr<PostAccumulateGradHook> before_;
  GradientHooks::Use use_;
  GradientHooks::For what_;
};

}  // namespace

GradientHooks::GradientHooks(const std::vector<at::Tensor>& leaves, const Use& use, For what) : leaves_(leaves) {
  for (const at::Tensor& leaf : leaves_) {
    auto before = std::exchange(post_acc_grad_hooks(leaf), nullptr);
    torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::make_unique<UseGradient>(std::move(before), use, what));
  }
}

GradientHooks::~GradientHooks() {
  for (const at::Tensor& leaf : leaves_) {
    // Unless somebody has put another in its place.
    if (auto* const own = dynamic_cast<UseGradient*>(post_acc_grad_hooks(leaf).get()))
      post_acc_grad_hooks(leaf) = own->take_before();
  }
}

bool has_gradient_hooks(const std::vector<at::Tensor>& leaves) {
  return std::ranges::any_of(
      leaves, [](const at::Tensor& leaf) { return UseGradient::updates(post_acc_grad_hooks(leaf).get()); });
}

}  // namespace snug::replay
