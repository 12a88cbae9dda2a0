#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace snug::optim {

struct AdamWOptions {
  double learning_rate = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  ///< of parameters with two or more dimensions; biases and norms are not decayed
};

/// AdamW (Loshchilov and Hutter 2019) through LibTorch's fused kernel. What it keeps is made here and not at the first
/// step, so that a plan made in between knows of it: both moments, and of a parameter in bf16 or fp16 a master copy in
/// fp32, which is what is updated; the parameter is the master rounded, and its moments are fp32. To put other contents
/// into such a parameter, write its master too (see named_state) or make the optimizer anew. Parameters must be
/// floating point.
class AdamW {
 public:
  AdamW(std::vector<at::Tensor> parameters, AdamWOptions options);

  /// One update of every parameter that has a gradient.
  void step(double learning_rate);

  /// What a first step takes in time and memory, without its effect: it overwrites the gradients with zeros, and leaves
  /// parameters, moments and counts bit for bit as they are. Throws std::logic_error after the first step.
  void rehearse();

  /// Frees all gradients.
  void zero_grad();

  [[nodiscard]] const std::vector<at::Tensor>& parameters() const noexcept { return parameters_; }

  /// Moments, step counts and master copies, for snapshots: tensors that step() writes in place.
  [[nodiscard]] std::vector<at::Tensor> state() const;

  /// The same by name, for files: "exp_avg.<parameter>", "exp_avg_sq.<parameter>", "step.<parameter>" and, where there
  /// is one, "master.<parameter>", by the names of the parameters in their order. Throws std::logic_error when there
  /// are more or fewer of those.
  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> named_state(
      const std::vector<std::string>& parameter_names) const;

 private:
  struct Group {
    double weight_decay;
    std::vector<std::size_t> members;
  };
  /// What the kernel updates in one call.
  struct Update {
    std::vector<at::Tensor> parameters, gradients, first, second, steps;
    void add(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& first_moment,
             const at::Tensor& second_moment, const at::Tensor& step);
  };
  void run(Update& update, double learning_rate, double weight_decay) const;

  AdamWOptions options_;
  std::vector<at::Tensor> parameters_, first_moments_, second_moments_, steps_;
  std::vector<at::Tensor> masters_;  // undefined for parameters of fp32
  std::vector<Group> groups_;
};

/// Scales all gradients so that their joint 2-norm is at most `limit`; 0 leaves them alone. Returns the norm before.
double clip_gradient_norm(const std::vector<at::Tensor>& parameters, double limit);

}  // namespace snug::optim
