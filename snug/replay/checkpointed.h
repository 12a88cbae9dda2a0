#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <utility>

#include "snug/replay/checkpoint.h"

namespace snug {

/// A module that runs another one as a checkpoint. Parameters, buffers and submodules are that module's own, under the
/// names that they have there, so that a state_dict saved with it is read without it, and the other way round:
///
///   auto block = std::make_shared<snug::CheckpointedImpl<BlockImpl>>(std::make_shared<BlockImpl>(...));
///
/// For modules whose forward is one function that is no template. train() and eval() reach the module inside.
template <class Impl, class Signature = decltype(&Impl::forward)>
class CheckpointedImpl;

template <class Impl, class Result, class... Arguments>
class CheckpointedImpl<Impl, Result (Impl::*)(Arguments...)> : public torch::nn::Module {
 public:
  explicit CheckpointedImpl(std::shared_ptr<Impl> inner, CheckpointOptions options = {})
      : inner_(std::move(inner)), options_(std::move(options)) {
    for (const auto& p : inner_->named_parameters(/*recurse=*/false))
      register_parameter(p.key(), p.value(), p.value().requires_grad());
    for (const auto& b : inner_->named_buffers(/*recurse=*/false)) register_buffer(b.key(), b.value());
    torch::nn::Module::train(inner_->is_training());  // before there are children, which may be in another mode
    for (const auto& m : inner_->named_children()) register_module(m.key(), m.value());
  }

  Result forward(Arguments... arguments) {
    const auto call = [inner = inner_](Arguments... a) -> Result {
      return inner->forward(std::forward<Arguments>(a)...);
    };
    return checkpoint(options_, call, std::forward<Arguments>(arguments)...);
  }

  void train(bool on = true) override {
    torch::nn::Module::train(on);
    inner_->train(on);
  }

  [[nodiscard]] const std::shared_ptr<Impl>& inner() const noexcept { return inner_; }

 private:
  std::shared_ptr<Impl> inner_;
  CheckpointOptions options_;
};

template <class Impl, class Result, class... Arguments>
class CheckpointedImpl<Impl, Result (Impl::*)(Arguments...) const>
    : public CheckpointedImpl<Impl, Result (Impl::*)(Arguments...)> {
 public:
  using CheckpointedImpl<Impl, Result (Impl::*)(Arguments...)>::CheckpointedImpl;
};

}  // namespace snug
