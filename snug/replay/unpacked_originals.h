#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <utility>
#include <vector>

namespace snug::replay {

/// The tensor that the program passed to save_for_backward, and its Python attributes. Autograd wraps the result of an
/// unpack hook in a new tensor, which has neither its identity nor its attributes.
struct Original {
  at::Tensor tensor;           ///< the same tensor; undefined where the program no longer has it, or has written it
  std::shared_ptr<void> look;  ///< class and attributes, as returned by the function given to set_look()
};

/// Collects the originals of what this thread unpacks through CollectedHooks, in order, so that a front end can give
/// them to the node. Scopes nest; the innermost collects. What is unpacked while a value is recomputed is not
/// collected.
class UnpackedOriginals {
 public:
  UnpackedOriginals();
  ~UnpackedOriginals();
  UnpackedOriginals(const UnpackedOriginals&) = delete;
  UnpackedOriginals& operator=(const UnpackedOriginals&) = delete;

  [[nodiscard]] const std::vector<Original>& in_order() const noexcept { return originals_; }

 private:
  friend class CollectedHooks;
  std::vector<Original> originals_;
  UnpackedOriginals* outer_;
};

/// Saved-tensor hooks whose tensors are collected.
class CollectedHooks : public torch::autograd::SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor& tensor) final;
  at::Tensor call_unpack_hook() final;

 protected:
  virtual void pack(const at::Tensor& tensor) = 0;
  virtual at::Tensor unpack() = 0;
  /// The tensor that was packed, in place of `unpacked`, which unpack() has returned.
  [[nodiscard]] virtual at::Tensor original(const at::Tensor& /*unpacked*/) const { return {}; }

 private:
  std::shared_ptr<void> look_;
};

/// For a front end: the function is called for each tensor that is packed, on the thread that saves it. What it returns
/// is kept until autograd releases the saved tensor.
void set_look(std::shared_ptr<void> (*look)(const at::Tensor& tensor)) noexcept;

}  // namespace snug::replay
