#pragma once

#include "snug/optim/optimizer.h"

namespace snug::optim {

struct LionOptions {
  double beta1 = 0.9;         ///< weight of what is kept in the direction of an update
  double beta2 = 0.99;        ///< decay of what is kept
  double weight_decay = 0.1;  ///< of parameters with two or more dimensions; biases and norms are not decayed
};

/// Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"): each weight moves by the learning rate, in
/// the direction of the sign of a momentum; a third to a tenth of AdamW's learning rate suits it. It keeps that
/// momentum, in fp32 for parameters of fewer bits: "exp_avg". An update takes a copy of one parameter.
class Lion final : public Optimizer {
 public:
  Lion(const Parameters& parameters, LionOptions options);

 private:
  void update(Update& u) override;
  [[nodiscard]] std::vector<OwnState> own_state(std::size_t parameter) const override;

  LionOptions options_;
  std::vector<at::Tensor> moments_;
};

}  // namespace snug::optim
