#pragma once

#include "snug/optim/adamw.h"

namespace snug::optim {

/// AdamW that keeps both moments in 8 bits a number, by blocks of 256 with a largest amount in fp32 each (see
/// BlockwiseCode): 2.03 bytes beside each weight in place of 8. Those of parameters with fewer than 4,096 elements are
/// in fp32, as in bitsandbytes. What it keeps: "exp_avg" and "exp_avg_sq", as codes (uint8), and "exp_avg_absmax" and
/// "exp_avg_sq_absmax", one of each block.
class AdamW8bit final : public Optimizer {
 public:
  AdamW8bit(const Parameters& parameters, AdamWOptions options);

 private:
  /// Codes and absmax of each block, or numbers and no absmax.
  struct Moment {
    at::Tensor values, absmax;
    int zero;  // as a value
  };
  void update(Update& u) override;
  [[nodiscard]] std::vector<OwnState> own_state(std::size_t parameter) const override;

  AdamWOptions options_;
  std::vector<Moment> first_moments_, second_moments_;
};

}  // namespace snug::optim
