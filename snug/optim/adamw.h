#pragma once

#include "snug/optim/optimizer.h"

namespace snug::optim {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  ///< of parameters with two or more dimensions; biases and norms are not decayed
};

/// AdamW (Loshchilov and Hutter 2019) through LibTorch's fused kernel. It keeps both moments, in fp32 for parameters of
/// fewer bits: "exp_avg" and "exp_avg_sq".
class AdamW final : public Optimizer {
 public:
  AdamW(const Parameters& parameters, AdamWOptions options);

 private:
  void update(Update& u) override;
  [[nodiscard]] std::vector<OwnState> own_state(std::size_t parameter) const override;

  AdamWOptions options_;
  std::vector<at::Tensor> first_moments_, second_moments_;
};

/// The keys of AdamWOptions, for optimizers that have them too, and what they hold.
const std::vector<OwnKey>& adamw_keys();
AdamWOptions adamw_options(const OwnValues& values);

}  // namespace snug::optim
