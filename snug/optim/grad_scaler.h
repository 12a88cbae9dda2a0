#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "snug/optim/gradient_norm.h"

namespace torch::optim {
class Optimizer;
}

namespace snug::optim {

class Optimizer;

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;             ///< more than 1
  double backoff_factor = 0.5;          ///< less than 1
  std::int64_t growth_interval = 2000;  ///< updates in a row without an overflow, after which the scale grows
  bool enabled = true;                  ///< else scale() and unscale() do nothing, and step() always steps
};

/// Loss scaling for gradients in fp16, with the semantics of torch.amp.GradScaler, its names of states and its errors:
///
///     scaler.scale(loss).backward();
///     scaler.unscale(optimizer);           // only to look at the gradients before the step, to clip them say
///     scaler.step(optimizer, [&] { optimizer.step(rate); });
///     scaler.update();
///
/// A step whose gradients overflowed is left out and the scale falls; after growth_interval steps without one it grows.
/// Several optimizers share one scaler: each may be unscaled, then stepped, once between updates. Gradients must not be
/// in fp16: those of weights in fp32 or bf16 are not. Not synchronized.
class GradScaler {
 public:
  /// Throws UsageError for factors that do not grow and fall.
  explicit GradScaler(GradScalerOptions options = {});

  /// Times the scale, on the autograd graph.
  [[nodiscard]] at::Tensor scale(const at::Tensor& output) const;

  /// Divides the gradients by the scale, in place, and notes whether one is not finite. Throws Error when it has been
  /// called since the last update(), or step() has, and for gradients in fp16.
  template <class AnyOptimizer>
  void unscale(AnyOptimizer& optimizer) {
    unscale_for(&optimizer, parameters_of(optimizer));
  }

  /// From here on a gradient that is not finite in one process is so in all: of shards, of which each has its own.
  void agree_with(OtherParts others) { others_ = std::move(others); }

  /// Calls `run` unless a gradient is not finite, having called unscale() unless that has been. Returns whether it ran.
  /// Throws Error when it has been called for this optimizer since the last update(), or it has no gradient at all.
  template <class AnyOptimizer>
  bool step(AnyOptimizer& optimizer, const std::function<void()>& run) {
    return step_for(&optimizer, parameters_of(optimizer), run);
  }

  /// The scale falls where a gradient was not finite since the last update, else grows when it is time; or becomes
  /// `new_scale`. Throws Error when no gradients were looked at and there is no `new_scale`.
  void update(std::optional<double> new_scale = std::nullopt);

  /// Whether a gradient of this optimizer was not finite when it was unscaled, since the last update.
  [[nodiscard]] bool overflowed(const void* optimizer) const;

  /// 1 when it is not enabled.
  [[nodiscard]] double get_scale() const;
  /// The scale where scale() reads it, an fp32 scalar that update() writes in place: for operators that make gradients
  /// ahead of backward (see ops::LinearLoss).
  [[nodiscard]] const at::Tensor& scale_tensor() const noexcept { return scale_; }
  [[nodiscard]] const GradScalerOptions& options() const noexcept { return options_; }

  /// scale, growth_factor, backoff_factor, growth_interval and _growth_tracker; {} when it is not enabled.
  [[nodiscard]] nlohmann::json state_dict() const;
  /// Throws UsageError for a state that lacks one of these or has another type there, leaving everything as it was; an
  /// empty one is that of a scaler that was not enabled.
  void load_state_dict(const nlohmann::json& state);

 private:
  enum class Stage : std::uint8_t { Ready, Unscaled, Stepped };
  struct OfOptimizer {
    Stage stage = Stage::Ready;
    std::vector<at::Tensor> found_inf;  // one for each device
  };
  static std::vector<at::Tensor> parameters_of(const Optimizer& optimizer);
  static std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer);
  void unscale_for(const void* optimizer, const std::vector<at::Tensor>& parameters);
  bool step_for(const void* optimizer, const std::vector<at::Tensor>& parameters, const std::function<void()>& run);

  GradScalerOptions options_;
  at::Tensor scale_, growth_tracker_;
  OtherParts others_;
  std::map<const void*, OfOptimizer> optimizers_;
};

}  // namespace snug::optim
