#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace snug::replay {

/// While it lives, `use` is called where the gradient of one of these leaves has been accumulated, by the thread that
/// has done so, behind the hook that was there before. It may write the leaf and let go of its gradient: nothing asks
/// for either any more in that backward pass, unless a replay has to read the leaf, which then says so. What it throws
/// ends the backward pass.
class GradientHooks {
 public:
  using Use = std::function<void(const at::Tensor& leaf)>;
  enum class For : std::uint8_t {
    Updates,
    Else,  ///< they use no gradient up
  };
  GradientHooks(const std::vector<at::Tensor>& leaves, const Use& use, For what = For::Updates);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

 private:
  std::vector<at::Tensor> leaves_;
};

/// Whether one of these leaves has any for updates now.
bool has_gradient_hooks(const std::vector<at::Tensor>& leaves);

}  // namespace snug::replay
