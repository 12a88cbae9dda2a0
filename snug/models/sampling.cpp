#include "snug/models/sampling.h"

#include <ATen/core/grad_mode.h>
#include <torch/types.h>

#include <tuple>

namespace snug::models {
namespace {

struct Sampler {
  const at::Tensor& logits;
  at::Generator& generator;

  std::int64_t operator()(const Greedy&) const { return logits.argmax().item<std::int64_t>(); }

  std::int64_t operator()(const Nucleus& n) const {
    // Behind the largest, and in fp64: no temperature is so low that it overflows.
    const at::Tensor scores = logits.to(at::kDouble);
    const at::Tensor probabilities = at::softmax((scores - scores.max()) / n.temperature, 0);
    const auto [likely, tokens] = probabilities.sort(/*stable=*/true, 0, /*descending=*/true);
    // What stands before a token: the first one always stays.
    const at::Tensor before = likely.cumsum(0) - likely;
    const at::Tensor kept = likely.where(before < n.top_p, 0);
    return tokens.index_select(0, kept.multinomial(1, false, generator)).item<std::int64_t>();
  }
};

}  // namespace

std::int64_t sample(const at::Tensor& logits, const Sampling& sampling, at::Generator& generator) {
  const at::NoGradGuard no_grad;
  return std::visit(Sampler{logits, generator}, sampling);
}

}  // namespace snug::models
