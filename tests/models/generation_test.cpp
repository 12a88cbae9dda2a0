#include "snug/models/generation.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "snug/base/errors.h"
#include "tiny_llama.h"

namespace snug::models {
namespace {

using ::testing::ElementsAreArray;
using ::testing::SizeIs;

/// Weights large enough that tokens follow from what was before.
Llama random_model() {
  torch::manual_seed(3);
  LlamaOptions options = tiny_llama();
  options.tied = false;
  Llama model(options);
  const at::NoGradGuard no_grad;
  for (at::Tensor& p : model->parameters()) {
    if (p.dim() == 2) p.mul_(10);
  }
  return model;
}

TEST(Generation, IsWhatTheWholeTextsLogitsSay) {
  Llama model = random_model();
  const std::vector<std::int64_t> prompt{5, 9, 2, 33};
  std::vector<std::int64_t> seen;
  const auto made = generate(*model, prompt, {.tokens = 20}, [&](std::int64_t token) { seen.push_back(token); });
  EXPECT_THAT(seen, ElementsAreArray(made));
  EXPECT_TRUE(model->is_training());  // as it was
  std::vector<std::int64_t> text = prompt;
  const at::NoGradGuard no_grad;
  for (const std::int64_t token : made) {
    const at::Tensor logits = model->forward(at::tensor(text).unsqueeze(0))[0][-1];
    ASSERT_EQ(token, logits.argmax().item<std::int64_t>());
    text.push_back(token);
  }
}

TEST(Generation, EndsAtAnEndAndAtTheModelsLength) {
  Llama model = random_model();
  const auto made = generate(*model, {5, 9, 2, 33}, {.tokens = 1000});
  EXPECT_THAT(made, SizeIs(40 - 4 + 1));  // the last is made of a full context
  const auto first = std::ranges::find(made, made[5]) - made.begin();
  const auto ended = generate(*model, {5, 9, 2, 33}, {.tokens = 1000, .ends = {made[5]}});
  EXPECT_EQ(static_cast<std::ptrdiff_t>(ended.size()), first);
  EXPECT_THAT(generate(*model, {5}, {.tokens = 0}), SizeIs(0));
  EXPECT_THROW(generate(*model, {}, {}), UsageError);
  EXPECT_THROW(generate(*model, std::vector<std::int64_t>(41, 1), {}), UsageError);
}

TEST(Generation, KnowsOfTokensBelowAnIdOnly) {
  Llama model = random_model();
  const auto all = generate(*model, {5, 9}, {.tokens = 20});
  const std::int64_t below = *std::ranges::max_element(all);
  for (const Sampling& sampling : {Sampling(Greedy{}), Sampling(Nucleus{.temperature = 2})}) {
    for (const std::int64_t token : generate(*model, {5, 9}, {.tokens = 30, .sampling = sampling, .below = below})) {
      EXPECT_LT(token, below);
    }
  }
}

TEST(Generation, EndsAtATokenAboveThoseToo) {
  Llama model = random_model();
  const std::int64_t likeliest = generate(*model, {5, 9}, {.tokens = 1}).front();
  ASSERT_GT(likeliest, 1);
  EXPECT_THAT(generate(*model, {5, 9}, {.tokens = 30, .below = likeliest, .ends = {likeliest}}), SizeIs(0));
}

TEST(Generation, DrawsTheSameWithTheSameSeed) {
  Llama model = random_model();
  const auto drawn = [&](std::uint64_t seed) {
    return generate(*model, {5, 9}, {.tokens = 20, .sampling = Nucleus{.temperature = 2, .top_p = 0.95}, .seed = seed});
  };
  EXPECT_EQ(drawn(1), drawn(1));
  EXPECT_NE(drawn(1), drawn(2));
}

TEST(Sampling, DrawsByProbabilityFromTheNucleus) {
  at::Generator generator = at::detail::createCPUGenerator(1);
  // 0.5, 0.3, 0.15, 0.05
  const at::Tensor logits = at::tensor({0.15F, 0.5F, 0.05F, 0.3F}).log();
  const auto shares = [&](const Nucleus& nucleus) {
    std::vector<double> counts(4, 0);
    for (int i = 0; i < 4000; ++i) counts[static_cast<std::size_t>(sample(logits, nucleus, generator))] += 1.0 / 4000;
    return counts;
  };
  // Two and a half standard deviations of 4,000 draws are at most 0.02.
  const auto near = [](const std::vector<double>& found, const std::vector<double>& expected) {
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 0.025) << i;
  };
  near(shares({}), {0.15, 0.5, 0.05, 0.3});
  near(shares({.temperature = 1, .top_p = 0.7}), {0, 0.625, 0, 0.375});
  near(shares({.temperature = 1, .top_p = 0.5}), {0, 1, 0, 0});
  near(shares({.temperature = 0.5, .top_p = 1}), {0.0225 / 0.365, 0.25 / 0.365, 0.0025 / 0.365, 0.09 / 0.365});
  for (const double temperature : {1e-39, 1e-320}) {
    near(shares({.temperature = temperature, .top_p = 1}), {0, 1, 0, 0});
  }
  EXPECT_EQ(sample(logits, Greedy{}, generator), 1);
  EXPECT_EQ(sample(at::tensor({1.0F, 2.0F, 2.0F}), Greedy{}, generator), 1);
}

}  // namespace
}  // namespace snug::models
