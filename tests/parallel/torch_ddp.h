#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/parallel/launch.h"

namespace snug::testing {

/// The gradients of several processes by LibTorch's own c10d::Reducer on Gloo, which DistributedDataParallel is made
/// of, with gradient_as_bucket_view; as a reference, and a rival.
class TorchDdp {
 public:
  /// The processes have met: they use the store that World::meet() has left at the same place.
  TorchDdp(std::vector<at::Tensor> parameters, const parallel::Launched& launched, Bytes bucket);
  ~TorchDdp();
  TorchDdp(const TorchDdp&) = delete;
  TorchDdp& operator=(const TorchDdp&) = delete;

  /// Around each forward pass that is to go backward.
  void before_forward();
  void before_backward(const at::Tensor& loss);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace snug::testing
