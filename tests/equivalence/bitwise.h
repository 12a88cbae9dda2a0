#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "snug/memory/device_memory.h"
#include "tests/device/test_device.h"

namespace snug::testing {

inline memory::DeviceMemory& cpu() { return memory::device_memory(c10::kCPU); }

/// Everything that a step leaves behind, copied.
struct Outcome {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
};

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.sizes() != b.sizes() || a.dtype() != b.dtype()) return false;
  const at::Tensor x = a.detach().cpu().contiguous(), y = b.detach().cpu().contiguous();
  return x.numel() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

inline void expect_same(const Outcome& expected, const Outcome& found) {
  ASSERT_EQ(expected.tensors.size(), found.tensors.size());
  for (std::size_t i = 0; i < expected.tensors.size(); ++i) {
    EXPECT_TRUE(same_bits(expected.tensors[i].second, found.tensors[i].second))
        << expected.tensors[i].first << " differs";
  }
}

inline void expect_same(const std::vector<at::Tensor>& expected, const std::vector<at::Tensor>& found) {
  ASSERT_EQ(expected.size(), found.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(expected[i], found[i])) << "tensor " << i;
}

/// Buffers, gradients, the loss and the random state after `step`, which runs forward and backward from a fixed seed
/// and the given buffers.
class StepUnderTest {
 public:
  StepUnderTest(std::vector<std::shared_ptr<torch::nn::Module>> modules) : modules_(std::move(modules)) {
    for (const auto& m : modules_) {
      for (const auto& b : m->buffers()) buffers_.push_back(b.clone());
    }
  }

  /// What plain LibTorch makes of a forward pass; gradients are cleared again.
  Outcome run_plain(const std::function<at::Tensor()>& forward) {
    Outcome outcome = run([&] {
      const at::Tensor loss = forward();
      loss.backward();
      return loss;
    });
    for (const auto& m : modules_) m->zero_grad();
    return outcome;
  }

  Outcome run(const std::function<at::Tensor()>& step) {
    std::size_t k = 0;
    for (const auto& m : modules_) {
      torch::NoGradGuard no_grad;
      for (auto& b : m->buffers()) b.copy_(buffers_[k++]);
      m->zero_grad();
    }
    torch::manual_seed(7);
    Outcome outcome;
    outcome.tensors.emplace_back("loss", step().detach().clone());
    for (const auto& m : modules_) {
      for (const auto& p : m->named_parameters()) {
        outcome.tensors.emplace_back("gradient of " + p.key(),
                                     p.value().grad().defined() ? p.value().grad().clone() : at::Tensor());
      }
      for (const auto& b : m->named_buffers()) outcome.tensors.emplace_back("buffer " + b.key(), b.value().clone());
    }
    outcome.tensors.emplace_back("random numbers afterwards", torch::rand({16}));
    return outcome;
  }

 private:
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<at::Tensor> buffers_;
};

}  // namespace snug::testing
