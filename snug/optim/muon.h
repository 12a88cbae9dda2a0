#pragma once

#include "snug/optim/adamw.h"

namespace snug::optim {

struct MuonOptions {
  double momentum = 0.95;  ///< of matrices, with Nesterov's step
  AdamWOptions others;     ///< of all other parameters; its weight decay is for all
  /// Names of those that are updated as others even if they are matrices: tables of rows that are looked up, and heads.
  std::vector<std::string> not_matrices;
};

/// Muon (Jordan et al. 2024) as torch.optim.Muon has it, for matrices: their momentum, made orthogonal by five steps of
/// Newton and Schulz in bf16, scaled so that it moves weights as far as AdamW does (Liu et al. 2025), so that one
/// learning rate does for all; and AdamW for the others: vectors, and matrices that `not_matrices` names. It keeps
/// "momentum_buffer" of matrices and AdamW's moments of the others. An update takes about two copies in bf16 and one in
/// fp32 of one matrix.
class Muon final : public Optimizer {
 public:
  Muon(const Parameters& parameters, MuonOptions options);

 private:
  struct Kept {
    at::Tensor momentum;       // of a matrix
    at::Tensor first, second;  // of others
  };
  void update(Update& u) override;
  [[nodiscard]] std::vector<OwnState> own_state(std::size_t parameter) const override;

  MuonOptions options_;
  std::vector<Kept> kept_;
};

}  // namespace snug::optim
