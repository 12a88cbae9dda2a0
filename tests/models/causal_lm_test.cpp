// What every decoder does, whichever its family: the loss in two ways, hidden states and logits, caches, documents in
// one row, generation.
#include "snug/models/causal_lm.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "reference.h"
#include "snug/models/generation.h"
#include "snug/models/gpt.h"
#include "snug/models/lora.h"
#include "tests/equivalence/bitwise.h"
#include "tiny_llama.h"

namespace snug::models {
namespace {

using snug::testing::same_bits;

constexpr std::int64_t kVocabulary = 64;
constexpr TiledLoss kThreeRows{.logits = 3 * kVocabulary * 4};

struct Family {
  const char* name;
  std::shared_ptr<CausalLmImpl> (*make)(const VocabularyLoss& loss);
};

std::shared_ptr<CausalLmImpl> small_llama(const VocabularyLoss& loss, bool tied) {
  LlamaOptions options = tiny_llama();
  options.tied = tied;
  options.loss = loss;
  return std::make_shared<LlamaImpl>(options);
}

const std::vector<Family> kFamilies{
    {"gpt",
     [](const VocabularyLoss& loss) -> std::shared_ptr<CausalLmImpl> {
       return std::make_shared<GptImpl>(
           GptOptions{.blocks = 2, .width = 32, .heads = 4, .sequence = 40, .vocabulary = kVocabulary, .loss = loss});
     }},
    {"gpt2",
     [](const VocabularyLoss& loss) -> std::shared_ptr<CausalLmImpl> {
       return std::make_shared<Gpt2Impl>(Gpt2Options{.layers = 2,
                                                     .width = 32,
                                                     .inner_width = 48,
                                                     .heads = 4,
                                                     .vocabulary = kVocabulary,
                                                     .sequence = 40,
                                                     .embedding_dropout = 0,
                                                     .residual_dropout = 0,
                                                     .attention_dropout = 0,
                                                     .loss = loss});
     }},
    {"llama", [](const VocabularyLoss& loss) { return small_llama(loss, false); }},
    {"tied_llama", [](const VocabularyLoss& loss) { return small_llama(loss, true); }},
};

class CausalLm : public ::testing::TestWithParam<Family> {
 protected:
  /// The same weights each time, large enough that tokens follow from what was before.
  static std::shared_ptr<CausalLmImpl> make(const VocabularyLoss& loss = PlainLoss{}) {
    torch::manual_seed(3);
    auto model = GetParam().make(loss);
    const at::NoGradGuard no_grad;
    for (at::Tensor& p : model->parameters()) {
      if (p.dim() == 2) p.mul_(5);
    }
    return model;
  }
};

at::Tensor given_tokens() { return (torch::arange(20) * 7 % kVocabulary).view({2, 10}); }
at::Tensor given_targets() { return (given_tokens() + 1) % kVocabulary; }

bool is_tiled(const at::Tensor& loss) { return loss.grad_fn()->name().find("LinearCrossEntropy") != std::string::npos; }

TEST_P(CausalLm, TheTiledLossIsThePlainOne) {
  const auto plain = make(), tiled = make(kThreeRows);
  at::Tensor targets = given_targets();
  targets[0][3] = -100;
  const at::Tensor expected = plain->loss(given_tokens(), targets), loss = tiled->loss(given_tokens(), targets);
  EXPECT_FALSE(is_tiled(expected));
  EXPECT_TRUE(is_tiled(loss));
  EXPECT_LT(difference(loss, expected), kRounding);
  expected.backward();
  loss.backward();
  const auto all = plain->named_parameters(), found = tiled->named_parameters();
  for (const auto& p : all) EXPECT_LT(difference(found[p.key()].grad(), p.value().grad()), kRounding) << p.key();
}

TEST_P(CausalLm, LogitsAreTheProductOfHiddenStatesAndTheOutputMatrix) {
  const at::NoGradGuard no_grad;
  const auto model = make();
  const auto matrix = std::get<at::Tensor>(model->output_matrix());
  EXPECT_EQ(matrix.sizes(), (std::vector<std::int64_t>{kVocabulary, 32}));
  EXPECT_EQ(model->vocabulary(), kVocabulary);
  EXPECT_EQ(model->sequence(), 40);
  EXPECT_TRUE(same_bits(model->forward(given_tokens()), at::linear(model->hidden(given_tokens()), matrix)));
}

TEST_P(CausalLm, GeneratesWhatTheWholeTextsLogitsSay) {
  const at::NoGradGuard no_grad;
  const auto model = make();
  std::vector<std::int64_t> text{5, 9, 2, 33};
  const auto made = generate(*model, text, {.tokens = 1000});
  EXPECT_EQ(made.size(), 40U - 4 + 1);  // the last is made of a full context
  for (const std::int64_t token : made) {
    ASSERT_EQ(token, model->forward(at::tensor(text).unsqueeze(0))[0][-1].argmax().item<std::int64_t>());
    text.push_back(token);
  }
}

TEST_P(CausalLm, DocumentsInOneRowDoNotSeeEachOther) {
  const at::NoGradGuard no_grad;
  const auto model = make();
  const at::Tensor row = given_tokens().view({1, 20}), targets = given_targets().view({1, 20});
  constexpr std::int64_t kFirst = 8, kSecond = 12;
  DocumentRows rows{at::cat({at::arange(kFirst), at::arange(kSecond)}).unsqueeze(0),
                    at::ones({1, 1, 20, 20}, at::kBool).tril()};
  const at::Tensor one_document = model->loss(row, targets, rows);
  rows.mask.narrow(2, kFirst, kSecond).narrow(3, 0, kFirst).fill_(false);
  const auto alone = [&](std::int64_t begin, std::int64_t length) {
    return model->loss(row.narrow(1, begin, length), targets.narrow(1, begin, length)) * length;
  };
  const at::Tensor expected = (alone(0, kFirst) + alone(kFirst, kSecond)) / 20;
  EXPECT_LT(difference(model->loss(row, targets, rows), expected), kRounding);
  EXPECT_GT(difference(one_document, expected), 1e-3);
}

TEST_P(CausalLm, AdaptersBeginAsTheModelWas) {
  const auto model = make(kThreeRows);
  const at::Tensor before = model->loss(given_tokens(), given_targets()).detach();
  EXPECT_FALSE(add_lora(*model, {.targets = {"all-linear"}, .rank = 2}).empty());
  const at::Tensor loss = model->loss(given_tokens(), given_targets());
  EXPECT_TRUE(same_bits(loss.detach(), before));
  loss.backward();
  for (const auto& [name, p] : lora_parameters(*model)) EXPECT_TRUE(p.grad().defined()) << name;
}

INSTANTIATE_TEST_SUITE_P(All, CausalLm, ::testing::ValuesIn(kFamilies), [](const auto& of) { return of.param.name; });

TEST(AdaptedOutputProjection, HasThePlainLoss) {
  torch::manual_seed(1);
  const auto model = small_llama(kThreeRows, /*tied=*/false);
  EXPECT_TRUE(is_tiled(model->loss(given_tokens(), given_targets())));
  EXPECT_EQ(add_lora(*model, {.targets = {"lm_head"}, .rank = 2}), std::vector<std::string>{"lm_head"});
  const at::Tensor loss = model->loss(given_tokens(), given_targets());
  EXPECT_FALSE(is_tiled(loss));
  loss.backward();
  EXPECT_GT(lora_parameters(*model)[1].second.grad().abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace snug::models
