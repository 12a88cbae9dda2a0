// What an experiment makes of a configuration: its documents, its loss, and the mode it leaves its model in.
#include "snug/train/experiment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/base/text_file.h"
#include "tests/base/fault.h"
#include "tests/base/scratch.h"
#include "tests/device/test_device.h"
#include "tests/train/reference_files.h"
#include "tests/train/two_blocks.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;
using snug::testing::fault;
using snug::testing::scratch;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kEnd = 0;  // <|end|>, the tiny model's eos_token_id

/// The tiny pretrained model on a folder of three short texts, one of which writes its end out.
Config on_documents(const fs::path& folder, const fs::path& model) {
  const fs::path texts = folder / "texts";
  fs::create_directories(texts);
  write_text(texts / "1", "the rain in town");
  write_text(texts / "2", "a sun");
  write_text(texts / "3", "one more<|end|>");
  Config c;
  c.model.kind = "llama";
  c.model.path = model;
  c.model.sequence = 24;
  c.data.path = texts;
  c.train.device = snug::testing::test_device().str();
  c.data.packing = Packing::Documents;
  c.train.batch = 2;
  return c;
}

std::vector<std::int64_t> row(const at::Tensor& t, std::int64_t i) {
  const at::Tensor own = t[i].contiguous();
  return {own.const_data_ptr<std::int64_t>(), own.const_data_ptr<std::int64_t>() + own.numel()};
}

/// What each document has as targets, in the order of the documents, in the batches of an epoch.
std::map<std::int64_t, std::vector<std::int64_t>> targets_of(const Experiment& experiment) {
  std::map<std::int64_t, std::vector<std::int64_t>> targets;
  const data::Batch batch = experiment.train_batch(0);
  for (std::int64_t i = 0; i < batch.input.size(0); ++i) {
    const auto documents = row(batch.documents, i), target = row(batch.target, i);
    std::map<std::int64_t, std::vector<std::int64_t>> of_row;
    for (std::size_t t = 0; t < target.size(); ++t) {
      if (target[t] != -100) of_row[documents[t]].push_back(target[t]);
    }
    for (auto& [document, ids] : of_row) targets[document] = ids;
  }
  return targets;
}

TEST(Documents, TheEndTokenOfEachIsATarget) {
  for (const char* model : {"tiny", "tiny.gguf"}) {
    const Experiment experiment(on_documents(scratch("experiment/packed"), kHere / model));
    const auto targets = targets_of(experiment);
    ASSERT_EQ(targets.size(), 3U) << model;
    const std::vector<std::string> texts{"the rain in town", "a sun", "one more"};
    for (const auto& [document, ids] : targets) {
      std::vector<std::int64_t> expected = experiment.tokenizer().encode(texts.at(static_cast<std::size_t>(document)));
      expected.erase(expected.begin());
      expected.push_back(kEnd);  // once, also where the text has it
      EXPECT_EQ(ids, expected) << model << " " << document;
    }
  }
}

TEST(Documents, EndInWindowsOverTheTextToo) {
  Config config = on_documents(scratch("experiment/windows"), kHere / "tiny");
  config.data.packing = Packing::None;
  config.data.validation_fraction = 0;
  config.train.validation_batches = 0;
  config.train.batch = 1;
  const Experiment experiment(config);
  const auto target = row(experiment.train_batch(0).target, 0);
  EXPECT_EQ(std::ranges::count(target, kEnd), 3);
}

TEST(Documents, EndAsTheirTokenizerSays) {
  const fs::path folder = scratch("experiment/own");
  fs::copy(kHere / "tiny", folder / "model");
  Config config = on_documents(folder, folder / "model");
  // Generation does not stop at it, so what is learned is the model's own end.
  write_text(folder / "model" / "tokenizer_config.json", R"({"eos_token": "<|begin|>"})");
  EXPECT_EQ(targets_of(Experiment(config)).at(1).back(), kEnd);
  std::string text = read_text(folder / "model" / "config.json");
  const std::string eos = "\"eos_token_id\": 0";
  text.replace(text.find(eos), eos.size(), "\"eos_token_id\": [0, 1]");
  write_text(folder / "model" / "config.json", text);
  EXPECT_EQ(targets_of(Experiment(config)).at(1).back(), 1);
}

TEST(Documents, OneAloneIsRefusedAsNothingIsKeptApart) {
  const fs::path folder = scratch("experiment/one");
  Config config = on_documents(folder, kHere / "tiny");
  fs::remove(fs::path(config.data.path) / "3");
  EXPECT_EQ(fault([&] { (void)Experiment(config); }), "none");
  fs::remove(fs::path(config.data.path) / "2");
  EXPECT_THAT(fault([&] { (void)Experiment(config); }), HasSubstr("texts is one; name a folder of texts"));
  const std::vector<std::uint16_t> ids(200, 7);  // as nanoGPT writes them, where documents begin unseen
  write_text(folder / "tokens.bin", {reinterpret_cast<const char*>(ids.data()), 2 * ids.size()});
  config.data.path = folder / "tokens.bin";
  EXPECT_THAT(fault([&] { (void)Experiment(config); }), HasSubstr("tokens.bin is one; name a folder of texts"));
  config.data.packing = Packing::None;
  EXPECT_EQ(fault([&] { (void)Experiment(config); }), "none");
}

Config one_block(const fs::path& folder) {
  std::string text;
  for (int i = 0; i < 500; ++i) text += std::to_string(i * i) + " and ";
  write_text(folder / "text", text);
  Config c;
  c.model.blocks = 1;
  c.model.width = 32;
  c.model.heads = 2;
  c.model.sequence = 16;
  c.data.path = folder / "text";
  c.train.device = snug::testing::test_device().str();
  c.train.batch = 2;
  return c;
}

TEST(Seeds, OfDataDecideOnBatchesAndThoseOfTrainingOnWeights) {
  Config config = one_block(scratch("experiment/seeds"));
  const auto made = [&](std::int64_t train, std::int64_t data) {
    config.train.seed = train;
    config.data.seed = data;
    const Experiment experiment(config);
    return std::pair(experiment.train_batch(0).input, experiment.model().parameters().at(0).detach().clone());
  };
  const auto [batch, weight] = made(3, -1);
  const auto [other_batch, other_weight] = made(4, -1);
  ASSERT_FALSE(at::equal(batch, other_batch));
  ASSERT_FALSE(at::equal(weight, other_weight));
  EXPECT_TRUE(at::equal(batch, made(4, 3).first));
  EXPECT_TRUE(at::equal(weight, made(3, 4).second));
  EXPECT_TRUE(at::equal(other_batch, made(3, 4).first));
}

TEST(Loss, IsPlainOrTiledAsModelLossSays) {
  const auto is_tiled = [](const Config& config) {
    Experiment experiment(config);
    return experiment.loss(experiment.train_batch(0)).grad_fn()->name().find("LinearCrossEntropy") != std::string::npos;
  };
  const fs::path folder = scratch("experiment/loss");
  Config gpt = one_block(folder), llama = gpt, pretrained = on_documents(folder, kHere / "tiny");
  llama.model.kind = "llama";
  EXPECT_FALSE(is_tiled(gpt)) << "auto is what each kind of model has always had";
  EXPECT_TRUE(is_tiled(llama));
  EXPECT_TRUE(is_tiled(pretrained));
  gpt.model.loss = LossKind::Tiled;
  llama.model.loss = pretrained.model.loss = LossKind::Plain;
  EXPECT_TRUE(is_tiled(gpt));
  EXPECT_FALSE(is_tiled(llama));
  EXPECT_FALSE(is_tiled(pretrained));
}

/// It makes a small model, whose parameters have other names.
TEST(WarmUp, AsksForNoNameOfTheModel) {
  Config config = two_blocks("warm_up");
  config.optimizer.kind = "muon";
  config.optimizer.own.set("muon_except", std::string("*blocks.1.*"));
  EXPECT_NO_THROW(warm_up(config));
  EXPECT_NO_THROW(Experiment{config});
  config.optimizer.own.set("muon_except", std::string("*nothing*"));
  EXPECT_THROW(Experiment{config}, UsageError) << "the model itself is asked";
}

TEST(Validation, LeavesTheModelInTheModeItWasIn) {
  Config config = one_block(scratch("experiment/mode"));
  config.model.own.set("dropout", 0.5);
  Experiment experiment(config);
  int batches = 0;
  const auto loss = experiment.validation_loss([&] { ++batches; });
  EXPECT_GT(batches, 1);
  EXPECT_EQ(loss, experiment.validation_loss()) << "nothing is dropped in it";
  EXPECT_TRUE(experiment.model().is_training());
  experiment.model().eval();
  (void)experiment.validation_loss();
  EXPECT_FALSE(experiment.model().is_training());
}

/// One token in a hundred of a short text is less than a window.
TEST(Validation, IsSaidToBeMissingWhereItsPartOfTheTextIsTooShort) {
  const auto told = [](const Config& config) { return Experiment(config).notes(); };
  Config config = one_block(scratch("experiment/short"));
  EXPECT_THAT(told(config), IsEmpty());
  config.model.sequence = 512;
  config.data.validation_fraction = 0.01;
  EXPECT_THAT(told(config), ElementsAre(HasSubstr("nothing is validated, as 0.01 of")));
  config.train.validation_batches = 0;
  EXPECT_THAT(told(config), IsEmpty()) << "none is asked for";
  config.train.validation_batches = 8;
  config.data.validation_fraction = 0;
  EXPECT_THAT(told(config), IsEmpty()) << "none is asked for";
}

TEST(Validation, LeavesItSoWhenItFails) {
  Experiment experiment(one_block(scratch("experiment/fails")));
  EXPECT_THROW((void)experiment.validation_loss([] { throw Error("out of something"); }), Error);
  EXPECT_TRUE(experiment.model().is_training());
}

}  // namespace
}  // namespace snug::train
