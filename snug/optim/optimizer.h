#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "snug/base/own_key.h"

namespace snug::optim {

/// Parameters that are updated with the same settings.
struct ParameterGroup {
  double weight_decay = 0;
  std::vector<std::size_t> members;  ///< which of the optimizer's parameters
};

/// The usual two: `weight_decay` for parameters of two or more dimensions, none for biases and norms.
std::vector<ParameterGroup> decayed_by_dimensions(const std::vector<at::Tensor>& parameters, double weight_decay);

/// Updates parameters from their gradients. What it keeps is made when it is made and not at the first step, so that a
/// plan made in between knows of it. Of a parameter in bf16 or fp16 it keeps a master copy in fp32, which is what is
/// updated, and the parameter is the master rounded; to put other contents into such a parameter, write its master too
/// (see named_state) or make the optimizer anew. Parameters must be floating point.
///
/// An optimizer derives from this: its constructor makes what it keeps of each updated() tensor, under
/// memory::Tag::Optimizer; update() is its rule, and own_state() what it keeps. A file of its own under optim, with an
/// OptimizerKind, and a line in optimizer_kinds() make it one that optimizer.kind takes.
class Optimizer {
 public:
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;

  /// One update of every parameter that has a gradient.
  void step(double learning_rate);

  /// What a first step takes in time and memory, without its effect: it overwrites the gradients with zeros, and leaves
  /// parameters and state bit for bit as they are. Throws std::logic_error after the first step.
  void rehearse();

  /// Frees all gradients.
  void zero_grad();

  [[nodiscard]] const std::vector<at::Tensor>& parameters() const noexcept { return parameters_; }

  /// What it keeps, for snapshots: tensors that step() writes in place.
  [[nodiscard]] std::vector<at::Tensor> state() const;

  /// The same by name, for files: "<what>.<parameter>", by the names of the parameters in their order: own_state(),
  /// "step" and, where there is one, "master". Throws std::logic_error when there are more or fewer names.
  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> named_state(
      const std::vector<std::string>& parameter_names) const;

 protected:
  Optimizer(std::vector<at::Tensor> parameters, std::vector<ParameterGroup> groups);

  /// What is updated in one call: parameters of one group, which are in fp32 or of more bits.
  struct Update {
    std::vector<std::size_t> members;  ///< which of parameters()
    std::vector<at::Tensor> parameters, gradients;
    std::vector<at::Tensor> steps;  ///< how many this makes, fp32 scalars
    double learning_rate = 0;
    double weight_decay = 0;
  };
  /// Updates in place, without gradients being recorded. Of gradients and a learning rate of zero, before the first
  /// step, nothing may come: see rehearse().
  virtual void update(Update& u) = 0;

  /// What is kept of one parameter, and under which names; always the same tensors.
  [[nodiscard]] virtual std::vector<std::pair<std::string_view, at::Tensor>> own_state(std::size_t parameter) const = 0;

  /// The tensor that is updated: the parameter, or its master.
  [[nodiscard]] const at::Tensor& updated(std::size_t parameter) const;

 private:
  void run(Update& u);

  std::vector<at::Tensor> parameters_;
  std::vector<ParameterGroup> groups_;
  std::vector<at::Tensor> masters_;  // undefined for parameters of fp32
  std::vector<at::Tensor> steps_;
};

/// An optimizer that can be chosen by its name.
struct OptimizerKind {
  std::string_view name;     ///< what optimizer.kind takes
  std::vector<OwnKey> keys;  ///< of the section [optimizer], beside those of all
  std::unique_ptr<Optimizer> (*make)(std::vector<at::Tensor> parameters, const OwnValues& values);
};

/// All there are, the default first.
const std::vector<const OptimizerKind*>& optimizer_kinds();

/// The one of that name. Throws UsageError for a name that is none.
const OptimizerKind& optimizer_kind(std::string_view name);

/// A key that several have.
inline constexpr OwnKey kWeightDecay{"weight_decay", 0.1, "decoupled weight decay", kNotNegative, {}, Resumed::Free};

/// Scales all gradients so that their joint 2-norm is at most `limit`; 0 leaves them alone. Returns the norm before.
double clip_gradient_norm(const std::vector<at::Tensor>& parameters, double limit);

}  // namespace snug::optim
