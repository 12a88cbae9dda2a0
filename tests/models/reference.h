// What the tests against other implementations share: the files of make_references.py, and how results are compared.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>

#include "snug/state/safetensors.h"

namespace snug::models {

inline state::StoredTensors stored(const std::string& name) {
  return state::open_safetensors(std::filesystem::path(SNUG_TESTS) / "models" / (name + ".safetensors")).tensors;
}

/// Logits are of the order of 1, and sums may be taken in another order.
inline constexpr double kRounding = 2e-5;

inline double difference(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() ? (a - b).abs().max().item<double>() : std::numeric_limits<double>::infinity();
}

inline std::int64_t parameter_count(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const auto& p : module.parameters()) count += p.numel();
  return count;
}

/// Compares the gradient of every parameter with that of the reference, which has one for each and no more.
inline void expect_gradients(const torch::nn::Module& module, const state::StoredTensors& expected, double tolerance) {
  std::size_t compared = 0;
  for (const auto& p : module.named_parameters()) {
    ASSERT_TRUE(expected.contains("gradient." + p.key())) << p.key();
    const at::Tensor gradient = expected.at("gradient." + p.key()).read();
    ASSERT_TRUE(p.value().grad().defined()) << p.key();
    EXPECT_LT(difference(p.value().grad(), gradient), tolerance) << p.key();
    ++compared;
  }
  const auto wanted = std::ranges::count_if(expected, [](const auto& e) { return e.first.starts_with("gradient."); });
  EXPECT_EQ(compared, static_cast<std::size_t>(wanted));
}

/// Dropout is active in training, the same for the same seed, and absent in evaluation.
inline void expect_dropout(torch::nn::Module& module, const std::function<at::Tensor()>& forward) {
  const auto seeded = [&](std::uint64_t seed) {
    torch::manual_seed(seed);
    return forward();
  };
  module.train();
  const at::Tensor dropped = seeded(1);
  EXPECT_TRUE(at::equal(dropped, seeded(1)));
  EXPECT_FALSE(at::equal(dropped, seeded(2)));
  module.eval();
  const at::Tensor whole = seeded(1);
  EXPECT_TRUE(at::equal(whole, seeded(2)));
  EXPECT_GT(difference(dropped, whole), 1e-3);
}

}  // namespace snug::models
