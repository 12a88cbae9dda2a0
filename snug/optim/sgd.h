#pragma once

#include "snug/optim/optimizer.h"

namespace snug::optim {

struct SgdOptions {
  double momentum = 0.9;      ///< decay of the sum of gradients; 0: only the last counts, and nothing is kept
  double weight_decay = 0.1;  ///< of parameters with two or more dimensions; biases and norms are not decayed
};

/// Stochastic gradient descent with momentum (Sutskever et al. 2013), which is a sum of gradients that decays; without
/// momentum nothing is kept but masters. It keeps the sum, in fp32 for parameters of fewer bits: "momentum_buffer".
/// Half of AdamW's memory at most.
class Sgd final : public Optimizer {
 public:
  Sgd(const Parameters& parameters, SgdOptions options);

 private:
  void update(Update& u) override;
  [[nodiscard]] std::vector<OwnState> own_state(std::size_t parameter) const override;

  double momentum_;
  std::vector<at::Tensor> sums_;  // none without momentum
};

}  // namespace snug::optim
