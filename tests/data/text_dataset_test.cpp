#include "snug/data/text_dataset.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "snug/base/errors.h"

namespace snug::data {
namespace {

namespace fs = std::filesystem;

TextCorpus corpus_of(const std::string& text) {
  const fs::path path = fs::path(::testing::TempDir()) / ("snug_dataset_" + std::to_string(::getpid()));
  std::ofstream(path, std::ios::binary) << text;
  TextCorpus corpus = TextCorpus::open(path);
  // The mapping outlives the name.
  fs::remove(path);
  return corpus;
}

/// Windows of two bytes that spell their own number in digits from 1 to 255, as a text has no zeros, and one byte more
/// for the last target.
std::string numbered_windows(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += {static_cast<char>(1 + i / 255), static_cast<char>(1 + i % 255)};
  return text + "!";
}

std::vector<std::int64_t> window_numbers(const Batch& batch) {
  std::vector<std::int64_t> numbers;
  for (std::int64_t row = 0; row < batch.input.size(0); ++row) {
    const auto* tokens = batch.input.const_data_ptr<std::int64_t>() + row * 2;
    numbers.push_back((tokens[0] - 1) * 255 + tokens[1] - 1);
  }
  return numbers;
}

/// The windows of one epoch in the order of training; one window a batch.
std::vector<std::int64_t> epoch_order(const TextDataset& dataset, std::int64_t epoch) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < dataset.train_windows(); ++i) {
    order.push_back(window_numbers(dataset.train_batch(epoch * dataset.train_windows() + i)).front());
  }
  return order;
}

TextDataset numbered_dataset(int windows, std::uint64_t seed = 0) {
  return TextDataset(corpus_of(numbered_windows(windows)),
                     {.batch = 1, .sequence = 2, .validation_fraction = 0, .seed = seed});
}

template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(TextDataset, GivesInt64BatchesWithTheTargetOneByteOn) {
  const std::string text = "the quick brown fox jumps over the lazy dog";
  const TextDataset dataset(corpus_of(text), {.batch = 3, .sequence = 8, .validation_fraction = 0, .seed = 1});
  const Batch batch = dataset.train_batch(0);
  ASSERT_EQ(batch.input.sizes(), (std::vector<std::int64_t>{3, 8}));
  ASSERT_EQ(batch.target.sizes(), (std::vector<std::int64_t>{3, 8}));
  ASSERT_EQ(batch.input.scalar_type(), at::kLong);
  for (std::int64_t row = 0; row < 3; ++row) {
    const auto* input = batch.input.const_data_ptr<std::int64_t>() + row * 8;
    const auto* target = batch.target.const_data_ptr<std::int64_t>() + row * 8;
    std::string window(input, input + 8);
    window.push_back(static_cast<char>(target[7]));
    const std::size_t start = text.find(window);
    ASSERT_NE(start, std::string::npos);
    EXPECT_EQ(start % 8, 0U);
    for (int i = 0; i < 7; ++i) EXPECT_EQ(target[i], input[i + 1]);
  }
}

TEST(TextDataset, KeepsBytesAbove127Positive) {
  const TextDataset dataset(corpus_of("\xff\x80\xfe"), {.batch = 1, .sequence = 2, .validation_fraction = 0});
  EXPECT_EQ(dataset.train_batch(0).input.const_data_ptr<std::int64_t>()[0], 255);
  EXPECT_EQ(dataset.train_batch(0).target.const_data_ptr<std::int64_t>()[1], 254);
}

TEST(TextDataset, VisitsEveryWindowExactlyOncePerEpoch) {
  for (const int windows : {1, 2, 3, 5, 63, 64, 65, 1000, 4097}) {
    const TextDataset dataset = numbered_dataset(windows, 7);
    ASSERT_EQ(dataset.train_windows(), windows);
    for (const std::int64_t epoch : {0, 1, 5}) {
      const std::vector<std::int64_t> order = epoch_order(dataset, epoch);
      const std::set<std::int64_t> seen(order.begin(), order.end());
      EXPECT_EQ(seen.size(), static_cast<std::size_t>(windows));
      EXPECT_EQ(*seen.begin(), 0);
      EXPECT_EQ(*seen.rbegin(), windows - 1);
    }
  }
}

TEST(TextDataset, ShufflesAnewInEveryEpochAndForEverySeed) {
  const TextDataset dataset = numbered_dataset(200, 3);
  const std::vector<std::int64_t> first = epoch_order(dataset, 0);
  EXPECT_NE(first, epoch_order(dataset, 1));
  EXPECT_NE(first, epoch_order(numbered_dataset(200, 4), 0));
  EXPECT_FALSE(std::ranges::is_sorted(first));
  int stays = 0;
  for (std::size_t i = 0; i < first.size(); ++i) stays += first[i] == static_cast<std::int64_t>(i) ? 1 : 0;
  // One is expected of a random permutation.
  EXPECT_LT(stays, 8);
}

TEST(TextDataset, PutsEveryWindowFirstAboutEquallyOften) {
  std::vector<int> times(8, 0);
  for (std::uint64_t seed = 0; seed < 800; ++seed) {
    ++times[static_cast<std::size_t>(window_numbers(numbered_dataset(8, seed).train_batch(0)).front())];
  }
  // 100 each, standard deviation 9.4.
  for (const int count : times) EXPECT_NEAR(count, 100, 47);
}

TEST(TextDataset, DependsOnSeedAndStepAlone) {
  const TextDatasetOptions options{.batch = 4, .sequence = 2, .validation_fraction = 0.1, .seed = 9};
  const TextDataset whole(corpus_of(numbered_windows(50)), options);
  for (std::int64_t step = 0; step < 5; ++step) (void)whole.train_batch(step);
  const TextDataset resumed(corpus_of(numbered_windows(50)), options);
  EXPECT_TRUE(at::equal(whole.train_batch(1000000).input, resumed.train_batch(1000000).input));
  EXPECT_TRUE(at::equal(whole.train_batch(5).input, resumed.train_batch(5).input));
  EXPECT_TRUE(at::equal(whole.train_batch(5).target, resumed.train_batch(5).target));
}

TEST(TextDataset, LetsABatchRunFromOneEpochIntoTheNext) {
  const std::string text = numbered_windows(5);
  const TextDataset dataset(corpus_of(text), {.batch = 3, .sequence = 2, .validation_fraction = 0, .seed = 2});
  std::vector<std::int64_t> rows;
  for (std::int64_t step = 0; step < 5; ++step) {
    for (const std::int64_t number : window_numbers(dataset.train_batch(step))) rows.push_back(number);
  }
  for (std::size_t epoch = 0; epoch < 3; ++epoch) {
    const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(epoch * 5);
    EXPECT_EQ(std::set<std::int64_t>(begin, begin + 5).size(), 5U);
  }
}

TEST(TextDataset, TakesValidationFromTheEndInOrderAndNeverTrainsOnIt) {
  // 201 bytes: 151 for training, windows 75 on for validation.
  const TextDataset dataset(corpus_of(numbered_windows(100)),
                            {.batch = 4, .sequence = 2, .validation_fraction = 0.25, .seed = 0});
  EXPECT_EQ(dataset.train_windows(), 75);
  EXPECT_EQ(dataset.validation_windows(), 24);
  for (std::int64_t step = 0; step < 40; ++step) {
    for (const std::int64_t number : window_numbers(dataset.train_batch(step))) EXPECT_LT(number, 75);
  }
  const Batch first = dataset.validation_batch(0);
  const Batch next = dataset.validation_batch(1);
  EXPECT_TRUE(at::equal(next.input, dataset.validation_batch(1 + 6).input)) << "6 batches hold all 24 windows";
  EXPECT_FALSE(at::equal(first.input, next.input));
  EXPECT_EQ(first.input.size(0), 4);
}

TEST(TextDataset, FillsTheLastValidationBatchFromTheFirstWindow) {
  const TextDataset dataset(corpus_of(numbered_windows(9) + "!"),
                            {.batch = 4, .sequence = 2, .validation_fraction = 0.5, .seed = 0});
  ASSERT_EQ(dataset.validation_windows(), 4);
  EXPECT_TRUE(at::equal(dataset.validation_batch(0).input, dataset.validation_batch(1).input));
}

TEST(TextDataset, HasNoValidationWhereThereIsNoTextForIt) {
  const TextDataset none = numbered_dataset(10);
  EXPECT_EQ(none.validation_windows(), 0);
  const TextDataset short_split(corpus_of(numbered_windows(10)),
                                {.batch = 1, .sequence = 2, .validation_fraction = 0.1, .seed = 0});
  EXPECT_EQ(short_split.validation_windows(), 0);
  EXPECT_NE(message_of([&] {
              (void)short_split.validation_batch(0);
            }).find("no validation window of 3 bytes in the last 2 bytes"),
            std::string::npos);
}

TEST(TextDataset, NamesTheBytesThereAreAndTheBytesNeeded) {
  const std::string message = message_of(
      [] { TextDataset(corpus_of("0123456789"), {.batch = 1, .sequence = 9, .validation_fraction = 0.5, .seed = 0}); });
  EXPECT_NE(message.find("5 of the text's 10 bytes are for training, but sequence = 9 needs 10 bytes"),
            std::string::npos)
      << message;
}

TEST(TextDataset, TakesATextOfExactlyOneWindow) {
  const TextDataset dataset(corpus_of("0123456789"), {.batch = 2, .sequence = 9, .validation_fraction = 0});
  EXPECT_EQ(dataset.train_windows(), 1);
  EXPECT_EQ(dataset.train_batch(3).input.size(0), 2);
}

TEST(TextDataset, RefusesOptionsAndNumbersOutOfRange) {
  const auto build = [](TextDatasetOptions options) {
    return message_of([&] { TextDataset(corpus_of("0123456789"), options); });
  };
  EXPECT_NE(build({.batch = 0, .sequence = 2}).find("batch = 0"), std::string::npos);
  EXPECT_NE(build({.batch = 1, .sequence = 0}).find("sequence = 0"), std::string::npos);
  EXPECT_NE(build({.batch = 1, .sequence = 2, .validation_fraction = 1}).find("validation_fraction = 1"),
            std::string::npos);
  const TextDataset dataset = numbered_dataset(10);
  EXPECT_NE(message_of([&] { (void)dataset.train_batch(-1); }).find("batch number -1"), std::string::npos);
  EXPECT_THROW((void)dataset.train_batch(std::numeric_limits<std::int64_t>::max()), Error);
}

}  // namespace
}  // namespace snug::data
