#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "snug/models/gpt.h"
#include "tests/equivalence/bitwise.h"

namespace snug::testing {

constexpr std::int64_t kVocabulary = 96;

/// A small GPT of always the same weights, and its steps.
struct Trained {
  explicit Trained(double dropout = 0) {
    torch::manual_seed(1);
    model = models::Gpt(models::GptOptions{
        .blocks = 3, .width = 48, .heads = 3, .sequence = 32, .vocabulary = kVocabulary, .dropout = dropout});
  }
  std::vector<at::Tensor> parameters() { return model->parameters(); }
  void backward(const at::Tensor& batch, double share = 1) { (share * loss(batch)).backward(); }
  at::Tensor loss(const at::Tensor& batch) { return model->loss(batch, batch.roll(1, 1)); }
  std::vector<at::Tensor> take_gradients() {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& p : model->parameters())
      gradients.push_back(p.grad().defined() ? p.grad().clone() : at::Tensor());
    model->zero_grad();
    return gradients;
  }
  models::Gpt model{nullptr};
};

inline at::Tensor batch_of(int rank, int micro = 0) {
  torch::manual_seed(100 + 10 * rank + micro);
  return torch::randint(0, kVocabulary, {12, 32});
}

inline void expect_same(const std::vector<at::Tensor>& expected, const std::vector<at::Tensor>& found,
                        const std::string& what) {
  ASSERT_EQ(expected.size(), found.size());
  int differ = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) differ += same_bits(expected[i], found[i]) ? 0 : 1;
  EXPECT_EQ(differ, 0) << what;
}

}  // namespace snug::testing
