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

/// The next instructions become a function of the live values, which is checkpointed. It works on copies of them, so
/// that it writes to nothing from outside.
void checkpoint_the_next(State& s, const Instruction& i) {
  if (s.may_run_twice && i.second % 4 != 0) return;  // nested now and then
  const std::size_t count = std::min<std::size_t>(s.behind.size(), 1 + i.first % 6);
  const std::vector<Instruction> body(s.behind.begin(), s.behind.begin() + static_cast<std::ptrdiff_t>(count));
  const Piece piece = [body, weights = s.weights, modules = s.modules,
                       regions = s.regions](std::vector<at::Tensor> live) {
    State inner;
    for (const at::Tensor& t : live) inner.live.push_back(t.clone());
    inner.weights = weights;
    inner.modules = modules;
    inner.regions = regions;
    inner.may_run_twice = true;
    struct CloseAll {  // a rerun may stop early
      State& s;
      ~CloseAll() {
        for (; s.open_regions > 0; --s.open_regions) s.regions->close();
      }
    } const close_all{inner};
    for (std::size_t k = 0; k < body.size(); k += 1 + std::exchange(inner.taken, 0)) {
      inner.behind = std::span(body).subspan(k + 1);
      inner.run(body[k]);
    }
    return inner.live;
  };
  const std::vector<at::Tensor> after = s.regions->checkpoint(i.variant, piece, s.live);
  // Weights stay what they are.
  s.live.resize(s.weights);
  s.live.insert(s.live.end(), after.begin() + static_cast<std::ptrdiff_t>(s.weights), after.end());
  s.taken = count;
}

constexpr std::array<Kind, 10> kControl{{{"branch", &branch},
                                         {"another dtype", &another_dtype},
                                         {"autocast", &autocast},
                                         {"no gradients", &without_gradients},
                                         {"die", &die},
                                         {"open region", &open_region},
                                         {"close region", &close_region},
                                         {"die too", &die},
                                         {"checkpoint", &checkpoint_the_next},
                                         {"another checkpoint", &checkpoint_the_next}}};

}  // namespace

std::span<const Kind> control_kinds() { return kControl; }

}  // namespace snug::programs
