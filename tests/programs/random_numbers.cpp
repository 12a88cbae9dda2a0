// Operators that draw random numbers.
#include <array>

#include "tests/programs/state.h"

namespace snug::programs {
namespace {

void noise(State& s, const Instruction& i) {
  const at::Tensor x = s.pick(i.first);
  const auto there = at::TensorOptions(at::kLong).device(s.at);
  switch (i.variant % 14) {
    case 0:
      return s.push(at::dropout(x, 0.3, true));
    case 1:
      return s.push(std::get<0>(at::native_dropout(x, 0.5, true)));
    case 2:
      return s.push(x * at::rand_like(x));
    case 3:
      return s.push(x + 0.1 * at::randn(x.sizes(), x.options().requires_grad(false)));
    case 4:
      return s.push(at::rrelu(x, 0.1, 0.4, /*training=*/true));
    case 5:
      return s.push(x * at::bernoulli(at::full_like(x, 0.6)));
    case 6:
      return s.push(at::feature_dropout(fitted(x, {2, 3, 2}), 0.4, true));
    case 7:
      return s.push(at::alpha_dropout(x, 0.2, true));
    case 8:
      return s.push(x.flatten().index_select(0, at::randint(0, std::max<std::int64_t>(x.numel(), 1), {3}, there)));
    case 9:
      return s.push(x.flatten().index_select(
          0, at::randperm(x.numel(), there).narrow(0, 0, std::min<std::int64_t>(x.numel(), 4))));
    case 10:
      return s.push(x * at::empty_like(x).uniform_(0.5, 1.5));
    case 11:
      return s.push(at::normal(x.detach().to(at::kFloat), 0.2) + x.mean());
    case 12: {
      const at::Tensor weights = fitted_float(x.detach().abs() + 0.1, {4});
      return s.push(fitted(x, {4}).index_select(0, weights.multinomial(2)));
    }
    default: {
      at::Tensor y = x * 1.5;
      return s.push(at::rrelu_(y, 0.1, 0.3, /*training=*/true));
    }
  }
}

/// A generator of the program's own, beside the default one.
void own_generator(State& s, const Instruction& i) {
  const at::Tensor x = s.pick(i.first);
  const at::Generator generator = at::detail::createCPUGenerator(i.second);
  const at::Tensor first = at::rand({3}, generator, at::kFloat);
  s.push(fitted(x, {3}) * first * at::empty({3}).exponential_(1.0, generator).clamp_max(2));
}

constexpr std::array<Kind, 2> kRandomNumbers{{{"noise", &noise}, {"noise of an own generator", &own_generator}}};

}  // namespace

std::span<const Kind> random_kinds() { return kRandomNumbers; }

}  // namespace snug::programs
