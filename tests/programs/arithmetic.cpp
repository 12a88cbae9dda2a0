// Pointwise operators, reductions, products, indexing and operators with several results.
#include <array>

#include "tests/programs/state.h"

namespace snug::programs {
namespace {

void unary(State& s, const Instruction& i) {
  const at::Tensor x = s.pick(i.first);
  switch (i.variant % 20) {
    case 0:
      return s.push(x.sin());
    case 1:
      return s.push(x.tanh());
    case 2:
      return s.push((-x.abs()).exp());
    case 3:
      return s.push(x.relu());
    case 4:
      return s.push(at::gelu(x));
    case 5:
      return s.push(x.sigmoid());
    case 6:
      return s.push((x.abs() + 1).sqrt());
    case 7:
      return s.push((x.abs() + 1).log());
    case 8:
      return s.push(at::silu(x));
    case 9:
      return s.push(at::softplus(x));
    case 10:
      return s.push(at::elu(x));
    case 11:
      return s.push(x.clamp(-0.5, 0.8));
    case 12:
      return s.push(at::leaky_relu(x, 0.1));
    case 13:
      return s.push((x.abs() + 1).rsqrt());
    case 14:
      return s.push((x.abs() + 0.5).pow(1.3));
    case 15:
      return s.push(at::hardtanh(x));
    case 16:
      return s.push(x.erf());
    case 17:
      return s.push((x * x + 1).reciprocal());
    case 18:
      return s.push(at::mish(x));
    default:
      return s.push(at::gelu(x, "tanh"));
  }
}

void binary(State& s, const Instruction& i) {
  const at::Tensor a = s.pick(i.first);
  const at::Tensor b = compatible(a, s.pick(i.second));
  switch (i.variant % 9) {
    case 0:
      return s.push(a + b);
    case 1:
      return s.push(a * b.tanh());
    case 2:
      return s.push(a - 0.5 * b);
    case 3:
      return s.push(a / (b * b + 1));
    case 4:
      return s.push(at::maximum(a, b.to(a.scalar_type())));
    case 5:
      return s.push(at::where(a > b, a, b.to(a.scalar_type())));
    case 6:
      return s.push(at::atan2(a, b.abs() + 1));
    case 7:
      return s.push(at::lerp(a, b.to(a.scalar_type()), 0.3));
    default:
      return s.push(at::addcmul(a, b.to(a.scalar_type()), b.to(a.scalar_type()).sigmoid(), 0.2));
  }
}

void product(State& s, const Instruction& i) {
  const at::Tensor a = matrix(s.pick(i.first));
  const at::Tensor other = s.pick(i.second).to(a.scalar_type());
  const at::Tensor b = fitted(other, {a.size(1), 3});
  const double scale = 1.0 / static_cast<double>(a.size(1) + 1);
  switch (i.variant % 6) {
    case 0:
      return s.push(a.mm(b) * scale);
    case 1:
      return s.push(at::addmm(fitted(other, {3}), a, b, 0.5, scale));
    case 2:
      return s.push(at::bmm(a.unsqueeze(0), b.unsqueeze(0)) * scale);
    case 3:
      return s.push(at::einsum("ij,kj->ik", {a, fitted(other, {2, a.size(1)})}) * scale);
    case 4:
      return s.push(at::linear(a, b.t(), fitted(other, {3})) * scale);
    default:
      return s.push(a.t().mm(fitted(other, {a.size(0), 2})) * scale);
  }
}

void reduction(State& s, const Instruction& i) {
  const at::Tensor x = s.pick(i.first);
  const std::int64_t d = dimension(x, i.second);
  const bool keep = i.second % 2 == 0;
  if (x.numel() == 0) return;
  switch (i.variant % 16) {
    case 0:
      return s.push(x.sum(at::IntArrayRef(d), keep));
    case 1:
      return s.push(x.mean(at::IntArrayRef(d), keep));
    case 2:
      return s.push(x.amax(at::IntArrayRef(d), keep));
    case 3:
      return s.push(at::logsumexp(x, at::IntArrayRef(d), keep));
    case 4:
      return s.push(x.softmax(d));
    case 5:
      return s.push(x.log_softmax(d));
    case 6:
      return s.push(x.cumsum(d) * 0.5);
    case 7:
      return s.push((x.tanh() + 1.5).prod(d, keep).tanh());
    case 8:
      return s.push((x.numel() > 1 ? x.std() : x.mean()) + 0.1);
    case 9:
      return s.push((x + 0.1).norm(2, at::IntArrayRef(d), keep));
    case 10:
      return s.push(x.sum());
    case 11:
      return s.push(std::get<0>(x.max(d, keep)));
    case 12:
      return s.push(at::cumprod(x.tanh() + 1.1, d).tanh());
    case 13:
      return s.push(x.logcumsumexp(d));
    case 14:
      // LibTorch 2.13 reads beside the values of an expanded tensor.
      return s.push(std::get<0>(x.contiguous().median(d, keep)));
    default:
      return s.push(x.mean());
  }
}

void indexing(State& s, const Instruction& i) {
  const at::Tensor x = s.pick(i.first);
  if (x.numel() == 0) return;
  const at::Tensor flat = x.reshape({-1});
  const std::int64_t n = flat.numel();
  const at::Tensor index = at::arange(i.second % 7 + 1, at::kLong) * (i.second + 3) % n;
  switch (i.variant % 12) {
    case 0:
      return s.push(flat.index_select(0, index));
    case 1:
      return s.push(flat.gather(0, index));
    case 2:
      return s.push(flat.index({index}));
    case 3:
      return s.push(flat.masked_select(flat > flat.mean()));
    case 4:
      return s.push(at::zeros({n}, x.options()).scatter_add(0, index, flat.index_select(0, index)));
    case 5:
      return s.push(std::get<0>(flat.sort()));
    case 6:
      return s.push(std::get<0>(flat.topk(std::min<std::int64_t>(n, 3))));
    case 7:
      return s.push(flat.index_add(0, index, fitted(flat.sin(), {index.numel()})));
    case 8:
      return s.push(flat.index_put({index}, fitted(flat.cos(), {index.numel()}), /*accumulate=*/true));
    case 9:
      return s.push(at::embedding(fitted(x, {5, 4}), index % 5));
    case 10:
      return s.push(flat.index({flat.detach() > 0}));
    default:
      return s.push(at::take(x, index));
  }
}

void several_results(State& s, const Instruction& i) {
  const at::Tensor x = s.pick(i.first);
  if (x.numel() == 0) return;
  const std::int64_t d = dimension(x, i.second);
  const auto push_all = [&](const std::vector<at::Tensor>& all) {
    for (std::size_t k = 0; k < std::min<std::size_t>(all.size(), 3); ++k) s.push(all[k]);
  };
  const at::Tensor m = matrix(x);
  switch (i.variant % 10) {
    case 0:
      return x.dim() == 0 ? s.push(x * 2) : push_all(x.chunk(2, d));
    case 1:
      return x.dim() == 0 ? s.push(x * 3) : push_all(x.unbind(d));
    case 2:
      return push_all((m * 2).split(1, 0));
    case 3: {
      const auto [mean, variance] = at::var_mean(m, at::IntArrayRef(1), /*unbiased=*/false, /*keepdim=*/true);
      return push_all({mean, variance});
    }
    case 4: {
      const auto [values, places] = m.sort(1, i.second % 2 == 0);
      return push_all({values, places.to(at::kFloat) * 0.1});
    }
    case 5: {
      const auto [out, mean, rstd] =
          at::native_layer_norm(m, {m.size(1)}, fitted(x, {m.size(1)}), fitted(x, {m.size(1)}), 1e-5);
      return push_all({out, mean, rstd});
    }
    case 6:
      return push_all(at::_foreach_mul({x, x.sin()}, 0.7));
    case 7:
      return push_all(at::meshgrid({fitted(x, {3}), fitted(x, {2})}, "ij"));
    case 8:
      return push_all({at::cat({m, m * 0.5}, 0), at::stack({x, x.cos()}, 0)});
    default: {
      const auto [values, places] = m.topk(1, 1);
      return push_all({values, at::one_hot(places.flatten(), m.size(1)).to(x.scalar_type())});
    }
  }
}

void out_variant(State& s, const Instruction& i) {
  const at::Tensor x = s.pick(i.first).detach();
  at::Tensor out = at::empty_like(x);
  if (i.variant % 2 == 0) {
    at::sin_out(out, x);
  } else {
    at::add_out(out, x, x, 0.5);
  }
  s.push(s.pick(i.second).mean() * out);
}

constexpr std::array<Kind, 7> kArithmetic{{{"unary", &unary},
                                           {"binary", &binary},
                                           {"product", &product},
                                           {"reduction", &reduction},
                                           {"indexing", &indexing},
                                           {"several results", &several_results},
                                           {"out variant", &out_variant}}};

}  // namespace

std::span<const Kind> arithmetic_kinds() { return kArithmetic; }

}  // namespace snug::programs
