#pragma once

#include <vector>

#include "tests/replay/layers_net.h"

namespace snug::testing {

/// Of a Net.
inline constexpr Bytes kWeight = 256 * 256 * 4;

inline at::Tensor batch(int step) { return torch::full({64, 256}, 0.1 * (step + 1)); }

/// A net that is trained by hand, with momentum.
struct ByHand {
  explicit ByHand(int linear_layers) : net(linear_layers) {
    for (const at::Tensor& p : parameters()) momenta.push_back(torch::zeros_like(p));
  }
  at::Tensor operator()(const at::Tensor& x) { return net(x); }
  [[nodiscard]] std::vector<at::Tensor> parameters() const { return net.layers->parameters(); }
  /// With their momenta.
  [[nodiscard]] std::vector<at::Tensor> state() const {
    std::vector<at::Tensor> all = parameters();
    all.insert(all.end(), momenta.begin(), momenta.end());
    return all;
  }
  void update_one(std::size_t i) {
    const torch::NoGradGuard no_grad;
    const at::Tensor p = parameters()[i];
    momenta[i].mul_(0.9).add_(p.grad());
    at::Tensor(p).sub_(momenta[i], 0.1);
  }
  void update() {
    for (std::size_t i = 0; i < momenta.size(); ++i) update_one(i);
  }
  void zero_grad() { net.layers->zero_grad(); }
  /// So many steps, forward and backward by `backward`.
  template <class Backward>
  void train(int steps, const Backward& backward) {
    for (int i = 0; i < steps; ++i) {
      backward(batch(i));
      update();
      zero_grad();
    }
  }

  Net net;
  std::vector<at::Tensor> momenta;
};

/// What plain training makes of its state.
inline std::vector<at::Tensor> trained_plainly(int linear_layers, int steps) {
  ByHand plain(linear_layers);
  plain.train(steps, [&](const at::Tensor& x) { plain(x).backward(); });
  return plain.state();
}

}  // namespace snug::testing
