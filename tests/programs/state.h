#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "tests/device/test_device.h"
#include "tests/programs/program.h"

namespace snug::programs {

/// What a running program has: its live values and the world around it.
struct State {
  std::vector<at::Tensor> live;
  std::size_t weights = 0;  // the first of them, which stay
  std::vector<std::shared_ptr<torch::nn::Module>>* modules = nullptr;
  const RegionCalls* regions = nullptr;
  int open_regions = 0;
  std::span<const Instruction> behind;  // what comes after the instruction that runs
  std::size_t taken = 0;                // of those, by it
  bool may_run_twice = false;           // so it must leave buffers alone
  c10::Device at = c10::kCPU;           // where the instruction that runs has its operands

  /// Runs one instruction, unless LibTorch refuses it.
  bool run(const Instruction& i);

  static constexpr std::int64_t kLargest = 192;
  static constexpr std::size_t kMostLive = 20;

  /// Copied, where it is on another device than the first operand.
  [[nodiscard]] at::Tensor pick(std::uint8_t i) const { return live[i % live.size()].to(at); }

  /// A new live value. What is no floating-point tensor becomes one; what is large loses its end.
  void push(at::Tensor t) {
    if (!t.defined() || t.is_complex()) return;
    if (!t.is_floating_point()) t = t.to(at::kFloat);
    if (t.numel() > kLargest) t = t.reshape({-1}).narrow(0, 0, kLargest);
    if (live.size() >= kMostLive) live.erase(live.begin() + static_cast<std::ptrdiff_t>(weights));
    live.push_back(std::move(t));
  }
};

struct Kind {
  std::string_view name;
  void (*run)(State&, const Instruction&);
};

// The families of instructions, each in a file of its own.
std::span<const Kind> arithmetic_kinds();
std::span<const Kind> view_kinds();
std::span<const Kind> in_place_kinds();
std::span<const Kind> random_kinds();
std::span<const Kind> layer_kinds();
std::span<const Kind> control_kinds();

/// The contents of a value, repeated and cut, as a tensor of another shape.
inline at::Tensor fitted(const at::Tensor& t, at::IntArrayRef shape) {
  const std::int64_t wanted = c10::multiply_integers(shape);
  if (t.numel() == 0) return torch::zeros(shape, t.options());
  const std::int64_t times = (wanted + t.numel() - 1) / t.numel();
  return t.reshape({-1}).repeat({times}).narrow(0, 0, wanted).reshape(shape);
}

inline at::Tensor fitted_float(const at::Tensor& t, at::IntArrayRef shape) { return fitted(t.to(at::kFloat), shape); }

/// Two dimensions, neither empty unless the value is.
inline at::Tensor matrix(const at::Tensor& t) {
  if (t.dim() == 0) return t.reshape({1, 1});
  return t.dim() == 1 ? t.unsqueeze(0) : t.flatten(0, t.dim() - 2);
}

/// `b` such that it broadcasts with `a`.
inline at::Tensor compatible(const at::Tensor& a, const at::Tensor& b) {
  const std::int64_t dims = std::min(a.dim(), b.dim());
  for (std::int64_t i = 1; i <= dims; ++i) {
    const std::int64_t x = a.size(-i), y = b.size(-i);
    if (x != y && x != 1 && y != 1) return b.mean();
  }
  return b;
}

inline std::int64_t dimension(const at::Tensor& t, std::uint8_t i) { return t.dim() == 0 ? 0 : i % t.dim(); }

}  // namespace snug::programs
