#pragma once

#include <torch/nn/module.h>

namespace snug::models {

/// Evaluation mode while it lives; then the whole module is in the mode that its root was in before.
class EvaluationScope {
 public:
  /// The module must outlive it.
  explicit EvaluationScope(torch::nn::Module& module) : module_(module), training_(module.is_training()) {
    module_.eval();
  }
  ~EvaluationScope() { module_.train(training_); }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  torch::nn::Module& module_;
  bool training_;
};

}  // namespace snug::models
