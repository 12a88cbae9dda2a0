// BERT against Hugging Face's, on weights and results that make_references.py wrote.
#include "snug/models/bert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "reference.h"
#include "snug/base/errors.h"
#include "snug/models/bert_names.h"
#include "snug/models/parameter.h"
#include "snug/state/load_weights.h"

namespace snug::models {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Without dropout: rates of a test are set in it.
const BertOptions kSmallBert{.layers = 2,
                             .width = 24,
                             .inner_width = 40,
                             .heads = 3,
                             .vocabulary = 48,
                             .sequence = 20,
                             .dropout = 0,
                             .attention_dropout = 0};
constexpr std::int64_t kClasses = 5;

BertMaskedLm masked_lm(const BertOptions& options = kSmallBert) {
  BertMaskedLm model(options);
  state::load_weights(*model, stored("bert_masked_lm"), "bert_masked_lm.safetensors");
  return model;
}

BertClassifier classifier(const BertOptions& options = kSmallBert) {
  BertClassifier model(options, kClasses);
  state::load_weights(*model, stored("bert_classifier"), "bert_classifier.safetensors");
  return model;
}

/// Three texts of different lengths, each of two segments.
BertInput input(const state::StoredTensors& expected) {
  return {expected.at("tokens").read(), expected.at("types").read(), expected.at("mask").read()};
}

template <class Model>
void expect_bert_as_the_reference(Model model, const state::StoredTensors& expected) {
  const BertInput all = input(expected), plain{.tokens = all.tokens};
  const at::Tensor logits = model->forward(all);
  EXPECT_LT(difference(logits, expected.at("logits").read()), kRounding);
  EXPECT_LT(difference(model->forward(plain), expected.at("logits.plain").read()), kRounding);
  EXPECT_GT(difference(logits, expected.at("logits.plain").read()), 1e-3) << "mask and types count";
  const at::Tensor loss = model->loss(all, expected.at("targets").read());
  EXPECT_LT(difference(loss, expected.at("loss").read()), kRounding);
  loss.backward();
  expect_gradients(*model, expected, kRounding);
}

TEST(Bert, FillsInWhatWasMaskedAsTheReferenceDoes) {
  expect_bert_as_the_reference(masked_lm(), stored("bert_masked_lm_expected"));
}

TEST(Bert, FillsInAsTheReferenceDoesWithATiledLoss) {
  BertOptions options = kSmallBert;
  options.loss = TiledLoss{.logits = 7 * 48 * 4};  // of 7 tokens at a time
  BertMaskedLm model = masked_lm(options);
  const auto& expected = stored("bert_masked_lm_expected");
  const at::Tensor loss = model->loss(input(expected), expected.at("targets").read());
  EXPECT_NE(loss.grad_fn()->name().find("LinearCrossEntropy"), std::string::npos);
  expect_bert_as_the_reference(model, expected);
}

TEST(Bert, ClassifiesAsTheReferenceDoes) {
  expect_bert_as_the_reference(classifier(), stored("bert_classifier_expected"));
}

TEST(Bert, PaddingBehindAMaskChangesNothing) {
  const at::NoGradGuard no_grad;
  const BertInput all = input(stored("bert_classifier_expected"));
  BertClassifier model = classifier();
  BertInput changed = all;
  changed.tokens = at::where(all.mask == 1, all.tokens, 7);
  EXPECT_FALSE(at::equal(changed.tokens, all.tokens));
  EXPECT_TRUE(at::equal(model->forward(all), model->forward(changed)));
  changed.mask = all.mask.to(at::kBool);
  EXPECT_TRUE(at::equal(model->forward(all), model->forward(changed))) << "a mask may be of any type";
  changed.mask = at::Tensor();
  EXPECT_GT(difference(model->forward(all), model->forward(changed)), 1e-3);
}

TEST(Bert, ThePaddingsVectorGetsNoGradientAsAnInput) {
  BertClassifier model(kSmallBert, kClasses);
  const auto words = model->named_parameters()["bert.embeddings.word_embeddings.weight"];
  EXPECT_EQ(words.select(0, 0).abs().sum().item<double>(), 0) << "and begins as 0";
  EXPECT_GT(words.select(0, 1).abs().sum().item<double>(), 0);
  model->loss({.tokens = at::arange(2, at::kLong).view({1, 2})}, at::full({1}, 3, at::kLong)).backward();
  EXPECT_EQ(words.grad().select(0, 0).abs().sum().item<double>(), 0);
  EXPECT_GT(words.grad().select(0, 1).abs().sum().item<double>(), 0);
}

/// A file as those first released: heads of all kinds, a buffer, the tied projection, the old names of norms.
state::StoredTensors old_file() {
  state::StoredTensors all;
  for (const auto* const from : {"bert_masked_lm", "bert_classifier"}) {
    for (const auto& [name, tensor] : stored(from)) {
      std::string old = name;
      if (const auto at = old.find("LayerNorm.weight"); at != std::string::npos) old.replace(at + 10, 6, "gamma");
      if (const auto at = old.find("LayerNorm.bias"); at != std::string::npos) old.replace(at + 10, 4, "beta");
      if (!old.starts_with("classifier.")) all.emplace(old, tensor);
    }
  }
  const auto add = [&](const char* name, const at::Tensor& t) {
    all.emplace(name, state::StoredTensor{t.scalar_type(), t.sizes().vec(), [t] { return t; }});
  };
  add("bert.embeddings.position_ids", at::arange(20).unsqueeze(0));
  add("cls.seq_relationship.weight", at::ones({2, 24}));
  add("cls.seq_relationship.bias", at::ones({2}));
  all.emplace("cls.predictions.decoder.weight", all.at("bert.embeddings.word_embeddings.weight"));
  all.emplace("cls.predictions.decoder.bias", all.at("cls.predictions.bias"));
  return all;
}

TEST(Bert, LoadsFilesOfOldNamesAndOtherHeads) {
  const at::NoGradGuard no_grad;
  const state::StoredTensors old = old_file();
  const BertInput texts = input(stored("bert_masked_lm_expected"));
  BertMaskedLm model(kSmallBert);
  EXPECT_THROW(state::load_weights(*model, old, "the old file"), UsageError);
  state::load_weights(*model, old, "the old file", {.rename = bert_masked_lm_name});
  EXPECT_TRUE(at::equal(model->forward(texts), masked_lm()->forward(texts)));

  // The encoder of a file without a classifier goes into one, which keeps the head that it began with.
  BertClassifier tuned(kSmallBert, kClasses);
  const at::Tensor head = tuned->named_parameters()["classifier.weight"].clone();
  EXPECT_THAT([&] { state::load_weights(*tuned, old, "the old file", {.rename = bert_classifier_name}); },
              ThrowsMessage<UsageError>(HasSubstr("2 missing: classifier.bias, classifier.weight")));
  state::load_weights(*tuned->encoder(), old, "the old file", {.rename = bert_encoder_name});
  EXPECT_TRUE(at::equal(tuned->encoder()->forward(texts), model->encoder()->forward(texts)));
  const auto parameters = tuned->named_parameters();
  EXPECT_TRUE(at::equal(parameters["classifier.weight"], head));
  EXPECT_TRUE(at::equal(parameters["bert.pooler.dense.weight"], old.at("bert.pooler.dense.weight").read()));
}

TEST(Bert, KnowsWhichNamesAreItsOwn) {
  EXPECT_EQ(bert_classifier_name("bert.encoder.layer.3.output.LayerNorm.gamma"),
            "bert.encoder.layer.3.output.LayerNorm.weight");
  EXPECT_EQ(bert_classifier_name("classifier.bias"), "classifier.bias");
  EXPECT_EQ(bert_classifier_name("cls.predictions.bias"), std::nullopt);
  EXPECT_EQ(bert_encoder_name("encoder.layer.3.output.LayerNorm.beta"), "encoder.layer.3.output.LayerNorm.bias");
  EXPECT_EQ(bert_encoder_name("bert.pooler.dense.bias"), "pooler.dense.bias");
  EXPECT_EQ(bert_masked_lm_name("bert.pooler.dense.bias"), std::nullopt);
  EXPECT_EQ(bert_masked_lm_name("other.weight"), "other.weight") << "left for load_weights to report";
}

TEST(Bert, DropsOutWhereItIsTold) {
  const at::NoGradGuard no_grad;
  const BertInput texts = input(stored("bert_masked_lm_expected"));
  for (double BertOptions::*const rate : {&BertOptions::dropout, &BertOptions::attention_dropout}) {
    BertOptions options = kSmallBert;
    options.*rate = 0.5;
    BertMaskedLm filler = masked_lm(options);
    expect_dropout(*filler, [&] { return filler->forward(texts); });
    BertClassifier sorter = classifier(options);
    expect_dropout(*sorter, [&] { return sorter->forward(texts); });
  }
}

TEST(Bert, ReleasedModelsHaveTheirSizes) {
  const ShapesOnlyScope shapes_only(at::kFloat);
  const auto parameters = [](const char* name) { return parameter_count(*BertMaskedLm(bert_options(name))); };
  EXPECT_EQ(parameters("bert-base-uncased"), 109'514'298);
  EXPECT_EQ(parameters("bert-base-cased"), 108'340'804);
  EXPECT_EQ(parameters("bert-base-chinese"), 102'290'312);
  EXPECT_EQ(parameters("bert-base-multilingual-cased"), 177'974'523);
  EXPECT_EQ(parameters("bert-large-uncased"), 335'174'458);
  EXPECT_EQ(parameters("bert-large-cased"), 333'610'308);
  EXPECT_EQ(parameter_count(*BertClassifier(bert_options("bert-base-uncased"), 2)), 109'483'778);
  EXPECT_EQ(bert_names().size(), 6U);
  EXPECT_THAT([] { bert_options("bert"); }, ThrowsMessage<UsageError>(HasSubstr("bert-base-chinese")));
}

TEST(Bert, RefusesShapesThatCannotBe) {
  BertOptions options = kSmallBert;
  options.heads = 5;
  EXPECT_THAT([&] { BertMaskedLm{options}; }, ThrowsMessage<UsageError>(AllOf(HasSubstr("24"), HasSubstr("5 heads"))));
  options = kSmallBert;
  options.padding = 48;
  EXPECT_THAT([&] { BertMaskedLm{options}; }, ThrowsMessage<UsageError>(HasSubstr("token 48 of a vocabulary of 48")));
  const auto zeros = [](std::int64_t sequence) { return torch::zeros({1, sequence}, at::kLong); };
  BertMaskedLm model(kSmallBert);
  EXPECT_THAT([&] { model->forward({.tokens = zeros(21)}); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("sequence of 21"), HasSubstr("model's 20"))));
  EXPECT_THAT([&] { model->forward({.tokens = zeros(9), .mask = zeros(8)}); },
              ThrowsMessage<UsageError>(HasSubstr("a mask of 1x8 for tokens of 1x9")));
  EXPECT_THAT([&] { model->forward({.tokens = zeros(9), .token_types = zeros(1)}); },
              ThrowsMessage<UsageError>(HasSubstr("token types of 1x1 for tokens of 1x9")));
  Bert encoder = model->encoder();
  EXPECT_THROW(encoder->pooled(encoder->forward({.tokens = zeros(9)})), UsageError);
}

}  // namespace
}  // namespace snug::models
