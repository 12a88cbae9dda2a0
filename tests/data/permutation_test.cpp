#include "snug/data/permutation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <vector>

#include "snug/base/errors.h"

namespace snug::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::int64_t> first_ten(std::int64_t count, std::uint64_t key) {
  std::vector<std::int64_t> places;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(count, 10); ++i) places.push_back(permuted(i, count, key));
  return places;
}

// As they were when only TextDataset used it: a training that resumes goes on with the batches it would have had.
TEST(Permutation, StaysTheOneOfTrainingsThatHaveBegun) {
  EXPECT_THAT(first_ten(10, 0), ElementsAre(6, 3, 4, 7, 2, 9, 0, 1, 8, 5));
  EXPECT_THAT(first_ten(10, 7), ElementsAre(7, 8, 0, 1, 5, 2, 4, 6, 9, 3));
  EXPECT_THAT(first_ten(1000, 3), ElementsAre(173, 403, 346, 75, 703, 874, 810, 277, 546, 351));
  EXPECT_THAT(first_ten(1'000'000'007, 0xdeadbeef), ElementsAre(695580586, 845136753, 98752519, 666133320, 502088900,
                                                                744294862, 897847418, 234587090, 975004403, 491471315));
  EXPECT_THAT(first_ten(1, 5), ElementsAre(0));
}

TEST(Permutation, TakesEachOnceAnEpochInAnotherOrder) {
  std::vector<std::vector<std::int64_t>> epochs(3);
  for (std::int64_t sample = 0; sample < 150; ++sample) {
    epochs[static_cast<std::size_t>(sample / 50)].push_back(shuffled(sample, 50, 1));
  }
  for (const auto& epoch : epochs) EXPECT_EQ(std::set<std::int64_t>(epoch.begin(), epoch.end()).size(), 50U);
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
}

TEST(Permutation, BatchesAreCountedWithoutOverflow) {
  EXPECT_EQ(first_sample(3, 4, "x"), 12);
  try {
    first_sample(-1, 4, "some data");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("some data: batch number -1 must be between 0 and"));
  }
  EXPECT_THROW(first_sample(std::numeric_limits<std::int64_t>::max(), 1, "x"), Error);
}

}  // namespace
}  // namespace snug::data
