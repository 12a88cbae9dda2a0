#include "snug/models/generation.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <limits>

#include "snug/base/errors.h"
#include "snug/models/evaluation_scope.h"

namespace snug::models {
namespace {

/// The logits of what has words, and of what ends the text.
at::Tensor drawable(const at::Tensor& logits, const GenerationOptions& options) {
  if (options.below >= logits.size(0)) return logits;
  at::Tensor rest = logits.clone();
  rest.narrow(0, options.below, logits.size(0) - options.below).fill_(-std::numeric_limits<double>::infinity());
  for (const std::int64_t end : options.ends) {
    if (end >= options.below && end < logits.size(0)) rest[end] = logits[end];
  }
  return rest;
}

c10::Device device_of(const CausalLmImpl& model) {
  const std::vector<at::Tensor> parameters = model.parameters(), buffers = model.buffers();
  return (parameters.empty() ? buffers : parameters).front().device();
}

}  // namespace

std::vector<std::int64_t> generate(CausalLmImpl& model, const std::vector<std::int64_t>& prompt,
                                   const GenerationOptions& options,
                                   const std::function<void(std::int64_t token)>& seen) {
  if (prompt.empty()) throw UsageError("generating: the prompt has no tokens; give some text");
  const std::int64_t longest = model.sequence(), given = static_cast<std::int64_t>(prompt.size());
  if (given > longest) {
    throw UsageError(
        fmt::format("generating: the prompt has {} tokens, and the model was made for {}", given, longest));
  }
  const at::NoGradGuard no_grad;
  const EvaluationScope evaluation(model);
  at::Generator generator = at::detail::createCPUGenerator(options.seed);
  KeyValueCache cache;
  std::vector<std::int64_t> made;
  const c10::Device device = device_of(model);
  at::Tensor tokens = at::tensor(prompt).unsqueeze(0).to(device);
  while (static_cast<std::int64_t>(made.size()) < options.tokens) {
    const at::Tensor logits = model.forward_last(tokens, &cache);
    const std::int64_t token = sample(drawable(logits[0].cpu(), options), options.sampling, generator);
    if (std::ranges::find(options.ends, token) != options.ends.end()) break;
    made.push_back(token);
    if (seen) seen(token);
    if (cache.length >= longest) break;
    tokens = at::full({1, 1}, token, at::TensorOptions(device).dtype(at::kLong));
  }
  return made;
}

}  // namespace snug::models
