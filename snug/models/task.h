#pragma once

#include <string>
#include <utility>
#include <vector>

namespace snug::models {

/// What a model is made for, as far as adapters have to know.
struct Task {
  std::string peft_type{};           ///< PEFT's TaskType; empty where PEFT has none
  std::vector<std::string> heads{};  ///< modules made for the task, which begin at random beside a pretrained model

  static Task causal_lm() { return {"CAUSAL_LM", {}}; }
  static Task sequence_classification(std::string head) { return {"SEQ_CLS", {std::move(head)}}; }
  static Task image_classification(std::string head) { return {"", {std::move(head)}}; }
};

/// What models that have a task derive from, beside torch::nn::Module.
class HasTask {
 public:
  [[nodiscard]] virtual Task task() const = 0;

 protected:
  HasTask() = default;
  HasTask(const HasTask&) = default;
  HasTask& operator=(const HasTask&) = default;
  ~HasTask() = default;
};

}  // namespace snug::models
