// Branches on values, precision, regions, and values that die.
#include <ATen/autocast_mode.h>

#include <array>

#include "tests/programs/state.h"

namespace snug::programs {
namespace {

void branch(State& s, const Instruction& i) {
  const at::Tensor x = s.pick(i.first);
  const double sum = x.sum().item<double>();
  if (sum > 0) {
    s.push(x.sin() * 0.5);
  } else {
    s.push(x.cos());
  }
  at::Tensor looped = x.tanh();
  for (int k = 0; k < static_cast<int>(std::abs(sum)) % 3; ++k) looped = looped * 0.5 + x;
  s.push(looped);
}

void another_dtype(State& s, const Instruction& i) {
  const at::Tensor x = s.pick(i.first);
  constexpr std::array kTypes{at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};
  s.push(x.to(kTypes[i.variant % kTypes.size()]));
}

void autocast(State& s, const Instruction& i) {
  const at::Tensor x = fitted_float(s.pick(i.first), {3, 4}), w = fitted_float(s.live.front(), {5, 4});
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::increment_nesting();
  const auto leave = [] {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  };
  try {
    // The weight is cast twice, and once from the cache.
    at::Tensor y = at::linear(x, s.live.front().dim() == 2 && s.live.front().size(1) == 4 ? s.live.front() : w);
    y = at::linear(y.softmax(1), fitted_float(s.pick(i.second), {2, y.size(1)}));
    s.push(i.variant % 2 == 0 ? y : y.to(at::kFloat));
  } catch (...) {
    leave();
    throw;
  }
  leave();
}

void without_gradients(State& s, const Instruction& i) {
  const torch::NoGradGuard no_grad;
  s.push(s.pick(i.first).sin() + 1);
}

void die(State& s, const Instruction& i) {
  if (s.live.size() <= s.weights + 1) return;
  const std::size_t k = s.weights + i.first % (s.live.size() - s.weights);
  s.live.erase(s.live.begin() + static_cast<std::ptrdiff_t>(k));
}

void open_region(State& s, const Instruction& i) {
  if (s.open_regions >= 4) return;
  ++s.open_regions;
  s.regions->open(i.variant);
}

void close_region(State& s, const Instruction&) {
  if (s.open_regions == 0) return;
  --s.open_regions;
  s.regions->close();
}

constexpr std::array<Kind, 8> kKinds{{{"branch", &branch},
                                      {"another dtype", &another_dtype},
                                      {"autocast", &autocast},
                                      {"no gradients", &without_gradients},
                                      {"die", &die},
                                      {"open region", &open_region},
                                      {"close region", &close_region},
                                      {"die too", &die}}};

}  // namespace

std::span<const Kind> control_kinds() { return kKinds; }

}  // namespace snug::programs
