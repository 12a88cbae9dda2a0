#include "snug/data/token_corpus.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/data/text_dataset.h"
#include "tests/base/fault.h"
#include "tests/data/token_files.h"

namespace snug::data {
namespace {

using snug::testing::fault;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TokenCorpus in_memory(const std::vector<std::int32_t>& ids, Ids documents = {0}) {
  return {at::tensor(ids, at::kInt), std::move(documents)};
}

TEST(TokenCorpus, IsTheBytesOfATextAndItsFiles) {
  const TemporaryFolder folder("token_corpus");
  (void)folder.write("a.txt", "ab\xff");
  (void)folder.write("b.txt", "cd");
  const TokenCorpus corpus = TextCorpus::open(folder.path());
  EXPECT_EQ(corpus.size(), 5);
  EXPECT_EQ(corpus.unit(), "bytes");
  EXPECT_THAT(corpus.documents(), ElementsAre(0, 3));
  EXPECT_THAT(ids_at(corpus, 1, 3), ElementsAre('b', 255, 'c'));
  EXPECT_EQ(corpus.highest_id(), 255);
  corpus.check_vocabulary(256);
  EXPECT_THAT(fault([&] { corpus.check_vocabulary(255); }), HasSubstr("id 255 at token 2 is none of a vocabulary"));
}

TEST(TokenCorpus, IsAFileOfTokens) {
  const TemporaryFolder folder("token_corpus");
  const auto bin = folder.write("t.bin", raw<std::uint16_t>({10, 11, 50257, 13, 14, 15}));
  (void)folder.write("t.idx", MegatronFields{}.bytes());
  const TokenCorpus corpus = TokenFile::open(bin);
  EXPECT_EQ(corpus.size(), 6);
  EXPECT_EQ(corpus.unit(), "tokens");
  EXPECT_THAT(corpus.documents(), ElementsAre(0, 5));
  EXPECT_EQ(corpus.highest_id(), 50257);
  corpus.check_vocabulary(50258);
  const std::string wrong = fault([&] { corpus.check_vocabulary(50257); });
  EXPECT_THAT(wrong, HasSubstr("id 50257 at token 2 of "));
  EXPECT_THAT(wrong, HasSubstr("t.bin is none of a vocabulary of 50257: a tokenizer that does not match"));
}

TEST(TokenCorpus, IsIdsInMemory) {
  const TokenCorpus corpus = in_memory({5, 6, 7, 100000}, {0, 1, 1, 4});
  EXPECT_EQ(corpus.size(), 4);
  EXPECT_THAT(corpus.documents(), ElementsAre(0, 1, 1, 4));
  EXPECT_THAT(ids_at(corpus, 2, 2), ElementsAre(7, 100000));
  EXPECT_THROW(ids_at(corpus, 2, 3), Error);
  EXPECT_THROW(ids_at(corpus, -1, 1), Error);
  EXPECT_EQ(corpus.highest_id(), 100000);
  EXPECT_THAT(fault([] { in_memory({1, -3}).check_vocabulary(10); }), HasSubstr("id -3 at token 1 is none"));
}

TEST(TokenCorpus, RefusesIdsThatAreNone) {
  const auto wrong = [](const at::Tensor& ids, Ids documents) { return fault([&] { TokenCorpus(ids, documents); }); };
  const at::Tensor good = at::tensor(std::vector<std::int32_t>{1, 2, 3, 4}, at::kInt);
  EXPECT_EQ(wrong(good, {0, 4}), "none");
  EXPECT_THAT(wrong(good.to(at::kLong), {0}), HasSubstr("these are Long of 1 dimensions on cpu"));
  EXPECT_THAT(wrong(good.view({2, 2}), {0}), HasSubstr("of 2 dimensions"));
  EXPECT_THAT(wrong(good.slice(0, 0, 4, 2), {0}), HasSubstr("contiguous"));
  EXPECT_THAT(wrong(at::Tensor(), {0}), HasSubstr("undefined"));
  EXPECT_THAT(wrong(at::empty({0}, at::kInt), {0}), HasSubstr("there are no ids"));
  EXPECT_THAT(wrong(good, {}), HasSubstr("must begin with token 0"));
  EXPECT_THAT(wrong(good, {1}), HasSubstr("must begin with token 0"));
  EXPECT_THAT(wrong(good, {0, 3, 2}), HasSubstr("document 2 begins with token 2, after one that begins with 3"));
  EXPECT_THAT(wrong(good, {0, 5}), HasSubstr("document 1 begins with token 5"));
}

TEST(TokenCorpus, FindsAWrongIdFarBehind) {
  std::vector<std::int32_t> ids(200'000, 1);
  ids[150'001] = 9;
  EXPECT_THAT(fault([&] { in_memory(ids).check_vocabulary(9); }), HasSubstr("id 9 at token 150001"));
  EXPECT_EQ(in_memory(ids).highest_id(), 9);
}

TEST(TokenCorpus, TrainsATextDatasetAsTheSameBytesDo) {
  const TemporaryFolder folder("token_corpus");
  std::string text;
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 500; ++i) {
    ids.push_back(1 + i * 7 % 251);
    text.push_back(static_cast<char>(ids.back()));
  }
  const TextDatasetOptions options{.batch = 3, .sequence = 10, .validation_fraction = 0.2, .seed = 5};
  const TextDataset bytes(TextCorpus::open(folder.write("t", text)), options);
  const TextDataset tokens(in_memory(ids), options);
  for (std::int64_t step = 0; step < 40; ++step) {
    EXPECT_TRUE(bytes.train_batch(step).input.equal(tokens.train_batch(step).input));
    EXPECT_TRUE(bytes.train_batch(step).target.equal(tokens.train_batch(step).target));
  }
  EXPECT_TRUE(bytes.validation_batch(1).input.equal(tokens.validation_batch(1).input));
  EXPECT_THAT(fault([&] {
                TextDataset(in_memory({1, 2, 3}), {.batch = 1, .sequence = 3});
              }),
              HasSubstr("of the text's 3 tokens are for training"));
}

}  // namespace
}  // namespace snug::data
