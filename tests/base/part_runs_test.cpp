#include "snug/base/part_runs.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace snug {
namespace {

/// The elements of the whole that a part has, by the definition.
std::vector<std::int64_t> elements_of(const PartRuns& runs, std::int64_t count) {
  std::vector<std::int64_t> elements;
  for (std::int64_t begin = runs.first; std::ssize(elements) < count; begin += runs.stride) {
    for (std::int64_t i = 0; i < runs.length && std::ssize(elements) < count; ++i) elements.push_back(begin + i);
  }
  return elements;
}

TEST(PartRuns, AreOneWithoutAnEndWhenNothingIsSaid) {
  const PartRuns all;
  EXPECT_EQ(all.at(0), 0);
  EXPECT_EQ(all.at(1'000'000'007), 1'000'000'007);
  EXPECT_EQ(all.before(12), 12);
  EXPECT_EQ(all.before(-3), 0);
}

TEST(PartRuns, KnowWhichElementsAndHowManyComeBeforeOne) {
  for (const PartRuns& runs : {PartRuns{0, 3, 3}, {2, 3, 7}, {5, 1, 4}, {4, 6, 6}, {1, 2, 2}}) {
    const std::vector<std::int64_t> elements = elements_of(runs, 24);
    for (std::int64_t i = 0; i < 24; ++i) EXPECT_EQ(runs.at(i), elements[static_cast<std::size_t>(i)]);
    for (std::int64_t element = 0; element < elements.back(); ++element) {
      std::int64_t before = 0;
      for (const std::int64_t one : elements) before += one < element ? 1 : 0;
      EXPECT_EQ(runs.before(element), before) << runs.first << " " << runs.length << " " << element;
    }
  }
}

TEST(PartRuns, AreWalkedInPiecesThatAreOneInTheWhole) {
  const PartRuns runs{2, 3, 7};
  const std::vector<std::int64_t> elements = elements_of(runs, 24);
  for (std::int64_t begin = 0; begin < 10; ++begin) {
    for (std::int64_t end = begin; end < 20; ++end) {
      std::int64_t next = begin;
      runs.each_run(begin, end, [&](std::int64_t i, std::int64_t at, std::int64_t count) {
        EXPECT_EQ(i, next);
        EXPECT_GT(count, 0);
        for (std::int64_t k = 0; k < count; ++k) EXPECT_EQ(at + k, elements[static_cast<std::size_t>(i + k)]);
        next += count;
      });
      EXPECT_EQ(next, end);
    }
  }
}

}  // namespace
}  // namespace snug
