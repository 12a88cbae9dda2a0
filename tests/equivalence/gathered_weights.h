#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace snug::testing {

/// A range of a profiler, as FSDP2 has them around what it does by itself.
class MarkedRange {
 public:
  explicit MarkedRange(const std::string& name) {
    torch::jit::Stack stack{name, c10::IValue()};
    c10::Dispatcher::singleton().findSchemaOrThrow("profiler::_record_function_enter_new", "").callBoxed(stack);
    range_ = stack.back();
  }
  ~MarkedRange() {
    torch::jit::Stack stack{range_};
    c10::Dispatcher::singleton()
        .findSchemaOrThrow("profiler::_record_function_exit", "_RecordFunction")
        .callBoxed(stack);
  }
  MarkedRange(const MarkedRange&) = delete;
  MarkedRange& operator=(const MarkedRange&) = delete;

 private:
  c10::IValue range_;
};

/// Weights that are there at times, as FSDP2 has them of one process: gathered for a module's forward and backward pass
/// into storages that stay the same, without a new version, and freed by resizing these.
class GatheredWeights {
 public:
  explicit GatheredWeights(std::vector<at::Tensor> contents) : contents_(std::move(contents)) {
    for (const at::Tensor& c : contents_) {
      weights_.push_back(at::empty_like(c));
      resize(weights_.back(), 0);
      weights_.back().requires_grad_();
    }
  }
  [[nodiscard]] const at::Tensor& operator[](std::size_t i) const { return weights_[i]; }
  [[nodiscard]] const std::vector<at::Tensor>& all() const { return weights_; }
  [[nodiscard]] int gathered() const { return gathered_; }

  void gather() {
    const MarkedRange range("FSDP::pre_forward");
    if (is_there()) return;
    ++gathered_;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      resize(weights_[i], contents_[i].nbytes());
      const at::AutoDispatchBelowADInplaceOrView as_before;
      weights_[i].copy_(contents_[i]);
    }
  }
  void free() {
    const MarkedRange range("FSDP::post_forward");
    if (!is_there()) return;
    for (const at::Tensor& w : weights_) resize(w, 0);
  }

  /// Has `module` run with them, and its backward pass.
  template <class Module>
  at::Tensor around(const at::Tensor& input, const Module& module) {
    gather();
    const at::Tensor x = input.requires_grad() ? input.view_as(input) : input;
    if (x.requires_grad()) x.register_hook([this](const at::Tensor&) { free(); });
    at::Tensor out = module(x);
    free();
    out.register_hook([this](const at::Tensor&) {
      gather();
      torch::autograd::Engine::get_default_engine().queue_callback([this] { free(); });  // if nobody has by then
    });
    return out;
  }

 private:
  [[nodiscard]] bool is_there() const { return weights_.front().storage().nbytes() > 0; }
  static void resize(const at::Tensor& tensor, std::size_t bytes) {
    c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
    storage->set_nbytes(bytes);
  }

  std::vector<at::Tensor> contents_, weights_;
  int gathered_ = 0;
};

}  // namespace snug::testing
