// Every family of models, by what the command asks of each.
#include "snug/train/model_family.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>
#include <string>
#include <vector>

#include "snug/train/config.h"
#include "snug/train/language_model.h"
#include "snug/train/pretrained.h"
#include "tests/base/fault.h"

namespace snug::train {
namespace {

class EveryFamily : public ::testing::TestWithParam<const ModelFamily*> {};
INSTANTIATE_TEST_SUITE_P(All, EveryFamily, ::testing::ValuesIn(model_families()),
                         [](const auto& family) { return std::string(family.param->name); });

data::Batch random_tokens(std::int64_t vocabulary, std::int64_t sequence) {
  const auto draw = [&] { return torch::randint(0, vocabulary, {2, sequence}); };
  return {draw(), draw()};
}

TEST_P(EveryFamily, HasATinyOneWhoseWeightsAllTrain) {
  EXPECT_EQ(&model_family(GetParam()->name), GetParam());
  torch::manual_seed(1);
  const auto model = GetParam()->make(tiny_config(*GetParam()));
  EXPECT_EQ(model->vocabulary(), 256);
  EXPECT_GE(model->longest(), 16);
  const at::Tensor loss = model->loss(random_tokens(256, 16));
  EXPECT_EQ(loss.dim(), 0);
  loss.backward();
  for (const auto& p : model->module().named_parameters()) {
    ASSERT_TRUE(p.value().grad().defined()) << p.key();
    EXPECT_GT(p.value().grad().abs().sum().item<double>(), 0) << p.key();
  }
}

TEST_P(EveryFamily, MakesTheSameModelOfTheSameConfigurationAndSeed) {
  ModelConfig config;
  config.kind = GetParam()->name;
  config.blocks = 2;
  config.width = 64;
  config.heads = 4;
  config.sequence = 24;
  config.vocabulary = 300;
  const auto made = [&] {
    torch::manual_seed(2);
    return GetParam()->make(config);
  };
  const auto a = made(), b = made();
  EXPECT_EQ(a->vocabulary(), 300);
  EXPECT_EQ(a->longest(), 24);
  const data::Batch batch = random_tokens(300, 24);
  EXPECT_TRUE(at::equal(a->loss(batch), b->loss(batch)));
}

TEST_P(EveryFamily, KeepsDocumentsApart) {
  const auto model = GetParam()->make(tiny_config(*GetParam()));
  model->module().eval();
  data::Batch batch = random_tokens(256, 16);
  batch.target.slice(1, 0, 8).fill_(data::kNoTarget);  // of the first document nothing is asked
  batch.positions = (torch::arange(16) % 8).expand({2, 16}).contiguous();
  batch.documents = torch::div(torch::arange(16), 8, "floor").expand({2, 16}).contiguous();
  const at::Tensor before = model->loss(batch);
  batch.input.slice(1, 0, 8).copy_(torch::randint(0, 256, {2, 8}));
  EXPECT_TRUE(at::equal(model->loss(batch), before)) << "the second does not see the first";
}

template <class Members>
void expect_shared_keys_to_be_the_same(const Members& members) {
  for (const auto* a : members) {
    for (const auto* b : members) {
      for (const OwnKey& one : a->keys) {
        for (const OwnKey& other : b->keys) {
          if (one.name != other.name) continue;
          EXPECT_EQ(one.otherwise, other.otherwise) << one.name;
          EXPECT_EQ(one.help, other.help) << one.name;
          EXPECT_EQ(describe(one.range), describe(other.range)) << one.name;
          EXPECT_EQ(one.resumed, other.resumed) << one.name;
        }
      }
    }
  }
}

TEST(OwnKeys, ThatShareANameAreOneKey) {
  expect_shared_keys_to_be_the_same(model_families());
  expect_shared_keys_to_be_the_same(optim::optimizer_kinds());
}

TEST(OwnKeys, HaveNamesThatNoOtherKeyHas) {
  std::set<std::string> names;
  for (const KeyHelp& key : config_keys()) EXPECT_TRUE(names.insert(key.key).second) << key.key;
}

TEST(ModelFamilies, AreTheGptAndTheLlamaAtLeast) {
  EXPECT_EQ(model_families().front()->name, "gpt");
  EXPECT_NE(model_family("llama").open, nullptr);
  EXPECT_EQ(snug::testing::fault([] { (void)model_family("lama"); }),
            "model: the kind \"lama\" is not known; did you mean \"llama\"? it must be one of gpt, gpt2, llama");
}

}  // namespace
}  // namespace snug::train
