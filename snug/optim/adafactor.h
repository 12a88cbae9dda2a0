#pragma once

#include "snug/optim/optimizer.h"

namespace snug::optim {

struct AdafactorOptions {
  double beta2_decay = -0.8;    ///< the second moment's weight of the past is 1 - step^this
  double clip_threshold = 1.0;  ///< largest root mean square of an update, before it is scaled
  double floor = 1e-3;          ///< of a parameter's root mean square, which scales its updates
  double weight_decay = 0.1;    ///< of parameters with two or more dimensions; biases and norms are not decayed
};

/// Adafactor (Shazeer and Stern 2018) as torch.optim.Adafactor has it: of the second moment of a matrix it keeps the
/// sums over rows and columns alone ("row_var", "col_var"; of others "variance"), and no first moment: next to nothing
/// beside the weights. Updates are in proportion to a parameter's size, and a learning rate is a share of it: 1e-2
/// suits it. An update takes a copy of one parameter.
class Adafactor final : public Optimizer {
 public:
  Adafactor(const Parameters& parameters, AdafactorOptions options);

 private:
  /// Of one parameter: of a matrix, or a stack of them, rows and columns; else whole.
  struct SecondMoment {
    at::Tensor rows, columns, whole;
  };
  void update(Update& u) override;
  void update_one(at::Tensor& parameter, const at::Tensor& gradient, SecondMoment& second, double step,
                  const Update& settings) const;
  [[nodiscard]] std::vector<OwnState> own_state(std::size_t parameter) const override;

  AdafactorOptions options_;
  std::vector<SecondMoment> second_moments_;
};

}  // namespace snug::optim
