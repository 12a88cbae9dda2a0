#include "snug/data/packed_dataset.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "tests/data/token_files.h"

namespace snug::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Documents of those lengths; each token is its own number.
TokenCorpus numbered_documents(const Ids& lengths) {
  Ids documents;
  std::int64_t size = 0;
  for (const std::int64_t length : lengths) {
    documents.push_back(size);
    size += length;
  }
  return {at::arange(size, at::kInt), documents};
}

Ids random_lengths(int count, int longest) {
  std::mt19937 random(3);
  Ids lengths;
  for (int i = 0; i < count; ++i) lengths.push_back(static_cast<std::int64_t>(random() % (longest + 1)));
  return lengths;
}

Ids row(const at::Tensor& tensor, std::int64_t index) {
  const auto* begin = tensor.const_data_ptr<std::int64_t>() + index * tensor.size(1);
  return {begin, begin + tensor.size(1)};
}

std::int64_t sum(const Ids& values) { return std::accumulate(values.begin(), values.end(), std::int64_t{0}); }

TEST(PackedDataset, PacksTheLongestFirstWhereTheyLeaveLeastRoom) {
  // 7 | 5 3 | 4 4: the 3 goes to the 5 and not to the 4s, which it would not fill, nor to the 7.
  const PackedDataset dataset(numbered_documents({3, 4, 7, 5, 4}), {.batch = 3, .sequence = 8, .padding = 99});
  ASSERT_EQ(dataset.rows(), 3);
  EXPECT_DOUBLE_EQ(dataset.fill_rate(), 23.0 / 24);
  const Batch batch = dataset.train_batch(0);
  std::map<std::int64_t, std::int64_t> rows;  // by the number of their first token
  for (std::int64_t i = 0; i < 3; ++i) rows[row(batch.input, i)[0]] = i;
  ASSERT_TRUE(rows.contains(7) && rows.contains(14) && rows.contains(3));
  EXPECT_THAT(row(batch.input, rows[7]), ElementsAre(7, 8, 9, 10, 11, 12, 13, 99));
  EXPECT_THAT(row(batch.target, rows[7]), ElementsAre(8, 9, 10, 11, 12, 13, -100, -100));
  EXPECT_THAT(row(batch.positions, rows[7]), ElementsAre(0, 1, 2, 3, 4, 5, 6, 0));
  EXPECT_THAT(row(batch.documents, rows[7]), ElementsAre(2, 2, 2, 2, 2, 2, 2, -1));
  EXPECT_THAT(row(batch.input, rows[14]), ElementsAre(14, 15, 16, 17, 18, 0, 1, 2));
  EXPECT_THAT(row(batch.target, rows[14]), ElementsAre(15, 16, 17, 18, -100, 1, 2, -100));
  EXPECT_THAT(row(batch.positions, rows[14]), ElementsAre(0, 1, 2, 3, 4, 0, 1, 2));
  EXPECT_THAT(row(batch.documents, rows[14]), ElementsAre(3, 3, 3, 3, 3, 0, 0, 0));
  EXPECT_THAT(row(batch.documents, rows[3]), ElementsAre(1, 1, 1, 1, 4, 4, 4, 4));
}

TEST(PackedDataset, TakesEveryTokenOnceAnEpochAndTeachesAllButTheFirst) {
  const Ids lengths = random_lengths(300, 100);
  const TokenCorpus corpus = numbered_documents(lengths);
  const auto starts = corpus.documents();
  const std::set<std::int64_t> firsts(starts.begin(), starts.end());
  const PackedDataset dataset(numbered_documents(lengths), {.batch = 1, .sequence = 32, .padding = -5, .seed = 1});
  for (const std::int64_t epoch : {0, 3}) {
    std::multiset<std::int64_t> inputs, targets;
    for (std::int64_t i = 0; i < dataset.rows(); ++i) {
      const Batch batch = dataset.train_batch(epoch * dataset.rows() + i);
      const Ids input = row(batch.input, 0), target = row(batch.target, 0), documents = row(batch.documents, 0);
      for (std::size_t k = 0; k < input.size(); ++k) {
        EXPECT_EQ(documents[k] == kNoDocument, input[k] == -5);
        if (documents[k] == kNoDocument) continue;
        inputs.insert(input[k]);
        if (target[k] == kNoTarget) continue;
        EXPECT_EQ(target[k], input[k] + 1);
        targets.insert(target[k]);
      }
    }
    // A document, or rest of one, of one token has nothing behind it to teach.
    const auto alone = std::ranges::count_if(lengths, [](std::int64_t length) { return length % 32 == 1; });
    EXPECT_GT(alone, 0);
    EXPECT_EQ(static_cast<std::int64_t>(inputs.size()), sum(lengths) - alone);
    EXPECT_EQ(std::set<std::int64_t>(inputs.begin(), inputs.end()).size(), inputs.size());
    for (std::int64_t token = 0; token < sum(lengths); ++token) {
      EXPECT_EQ(targets.count(token), firsts.contains(token) ? 0U : 1U) << token;
    }
  }
}

TEST(PackedDataset, RefusesDocumentsThatTeachNothing) {
  EXPECT_THROW(PackedDataset(numbered_documents({1, 1, 1}), {.batch = 1, .sequence = 8}), UsageError);
  const PackedDataset dataset(numbered_documents({1, 2, 1}), {.batch = 1, .sequence = 8});
  EXPECT_EQ(dataset.rows(), 1);
  EXPECT_THAT(row(dataset.train_batch(0).target, 0), ElementsAre(2, -100, -100, -100, -100, -100, -100, -100));
}

TEST(PackedDataset, FillsRowsAlmostWhole) {
  const PackedDataset dataset(numbered_documents(random_lengths(1000, 60)), {.batch = 1, .sequence = 128});
  EXPECT_GT(dataset.fill_rate(), 0.99);
  EXPECT_LE(dataset.fill_rate(), 1);
}

TEST(PackedDataset, DependsOnSeedAndStepAlone) {
  const Ids lengths = random_lengths(50, 20);
  const PackedDatasetOptions options{.batch = 4, .sequence = 16, .seed = 9};
  const PackedDataset first(numbered_documents(lengths), options), second(numbered_documents(lengths), options);
  PackedDatasetOptions other = options;
  other.seed = 10;
  const PackedDataset third(numbered_documents(lengths), other);
  (void)first.train_batch(0);
  EXPECT_TRUE(at::equal(first.train_batch(7).input, second.train_batch(7).input));
  EXPECT_FALSE(at::equal(first.train_batch(7).input, third.train_batch(7).input));
  // From one epoch into the next, in another order.
  std::vector<Ids> rows;
  const PackedDataset one(numbered_documents(lengths), {.batch = 1, .sequence = 16});
  for (std::int64_t i = 0; i < 2 * one.rows(); ++i) rows.push_back(row(one.train_batch(i).input, 0));
  const auto middle = rows.begin() + one.rows();
  EXPECT_FALSE(std::equal(rows.begin(), middle, middle));
  EXPECT_TRUE(std::is_permutation(rows.begin(), middle, middle));
}

TEST(PackedDataset, RefusesOptionsOutOfRange) {
  EXPECT_THROW(PackedDataset(numbered_documents({3}), {.batch = 0}), UsageError);
  EXPECT_THROW(PackedDataset(numbered_documents({3}), {.sequence = 0}), UsageError);
  EXPECT_THROW((void)PackedDataset(numbered_documents({3}), {}).train_batch(-1), Error);
}

TEST(DocumentMask, LetsTokensSeeTheirOwnDocumentUpToThemselves) {
  const at::Tensor documents = at::arange(12, at::kLong).view({2, 6}).div(4, "floor") - 1;  // -1 -1 -1 -1 0 0 | ...
  const at::Tensor mask = document_mask(documents);
  ASSERT_EQ(mask.sizes(), (std::vector<std::int64_t>{2, 1, 6, 6}));
  ASSERT_EQ(mask.scalar_type(), at::kBool);
  for (std::int64_t b = 0; b < 2; ++b) {
    const Ids own = row(documents, b);
    for (std::size_t i = 0; i < 6; ++i) {
      for (std::size_t j = 0; j < 6; ++j) {
        const bool sees =
            mask.const_data_ptr<bool>()[(b * 6 + static_cast<std::int64_t>(i)) * 6 + static_cast<std::int64_t>(j)];
        EXPECT_EQ(sees, j <= i && own[i] == own[j]);
      }
    }
  }
  EXPECT_THROW(document_mask(documents.view({12})), UsageError);
}

TEST(DocumentMask, MakesEachDocumentAttendAsIfItWereAlone) {
  const PackedDataset dataset(numbered_documents({3, 4}), {.batch = 1, .sequence = 10});
  const at::Tensor mask = document_mask(dataset.train_batch(0).documents);
  const at::Tensor q = at::rand({1, 2, 10, 4}), k = at::rand({1, 2, 10, 4}), v = at::rand({1, 2, 10, 4});
  const at::Tensor packed = at::scaled_dot_product_attention(q, k, v, mask);
  const auto alone = [&](std::int64_t begin, std::int64_t count) {
    return at::scaled_dot_product_attention(q.narrow(2, begin, count), k.narrow(2, begin, count),
                                            v.narrow(2, begin, count), {}, 0.0, /*is_causal=*/true);
  };
  // Another order of the same sums.
  EXPECT_TRUE(packed.narrow(2, 0, 4).allclose(alone(0, 4), 1e-5, 1e-6));
  EXPECT_TRUE(packed.narrow(2, 4, 3).allclose(alone(4, 3), 1e-5, 1e-6));
  EXPECT_FALSE(packed.isnan().any().item<bool>());
}

}  // namespace
}  // namespace snug::data
