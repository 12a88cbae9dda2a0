#include "snug/parallel/bucket_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace snug::parallel {
namespace {

TEST(BucketLayout, DividesEachParameterAtUnitsAndEachElementOnce) {
  std::mt19937 random(3);  // NOLINT: the same each time
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<std::int64_t> elements;
    Bucket bucket;
    for (std::size_t i = 0; i < 1 + random() % 12; ++i)
      elements.push_back(1 + static_cast<std::int64_t>(random() % 3000));
    for (std::size_t i = elements.size(); i-- > 0;) bucket.push_back(i);
    const int processes = 1 + static_cast<int>(random() % 6);
    const Divided divided = trial % 2 == 0 ? Divided::Whole : Divided::Each;
    const BucketLayout layout(elements, bucket, processes, divided);
    EXPECT_EQ(layout.part() % kShardUnit, 0);
    EXPECT_EQ(layout.size(), layout.part() * processes);
    std::vector<std::int64_t> found(elements.size(), 0);  // behind the last piece of each
    for (int rank = 0; rank < processes; ++rank) {
      std::int64_t end = 0;
      for (const Piece& piece : layout.pieces_of(rank)) {
        EXPECT_GT(piece.count, 0);
        EXPECT_EQ(piece.first, found[piece.parameter]) << "they follow each other";
        EXPECT_EQ(piece.first % kShardUnit, 0);
        EXPECT_GE(piece.at, end);
        found[piece.parameter] += piece.count;
        end = piece.at + piece.count;
        EXPECT_LE(end, layout.part());
        // And lies in the flat tensor where the parameter does.
        const auto in_all = [&](const Piece& all) {
          return all.parameter == piece.parameter && all.first <= piece.first &&
                 piece.first + piece.count <= all.first + all.count &&
                 all.at + piece.first - all.first == rank * layout.part() + piece.at;
        };
        EXPECT_EQ(std::ranges::count_if(layout.pieces(), in_all), 1);
        if (divided == Divided::Whole) continue;
        const EvenShards shards(elements[piece.parameter], processes);
        EXPECT_EQ(piece.first, shards.first(rank));
        EXPECT_EQ(piece.count, shards.count(rank));
      }
    }
    EXPECT_EQ(found, elements);
  }
}

/// What lies in the strips of a part is what lies in the part.
TEST(BucketLayout, GoesInStripsThatAreAsLargeAsAskedFor) {
  std::mt19937 random(4);  // NOLINT: the same each time
  for (int trial = 0; trial < 300; ++trial) {
    const std::vector<std::int64_t> elements = {1 + static_cast<std::int64_t>(random() % 200'000),
                                                1 + static_cast<std::int64_t>(random() % 3000)};
    const int processes = 1 + static_cast<int>(random() % 6);
    const BucketLayout layout(elements, {1, 0}, processes, trial % 2 == 0 ? Divided::Whole : Divided::Each);
    const std::int64_t about = 1 + static_cast<std::int64_t>(random() % 30'000);
    std::int64_t end = 0;
    std::vector<std::vector<Piece>> found(static_cast<std::size_t>(processes));
    for (const Strip& strip : layout.strips(about)) {
      EXPECT_EQ(strip.first, end);
      EXPECT_GT(strip.count, 0);
      EXPECT_LE(strip.count * processes, 2 * about + kShardUnit * processes);
      end += strip.count;
      for (int rank = 0; rank < processes; ++rank) {
        for (Piece piece : layout.pieces_of(rank, strip)) {
          EXPECT_LE(piece.at + piece.count, strip.count);
          piece.at += strip.first;
          auto& so_far = found[static_cast<std::size_t>(rank)];
          const bool goes_on = !so_far.empty() && so_far.back().parameter == piece.parameter &&
                               so_far.back().first + so_far.back().count == piece.first;
          goes_on ? void(so_far.back().count += piece.count) : so_far.push_back(piece);
        }
      }
    }
    EXPECT_EQ(end, layout.part());
    for (int rank = 0; rank < processes; ++rank)
      EXPECT_EQ(found[static_cast<std::size_t>(rank)], layout.pieces_of(rank));
  }
  EXPECT_EQ(BucketLayout({0}, {0}, 2, Divided::Each).strips(100).size(), 1U) << "all take part in one";
}

TEST(BucketLayout, GivesEachProcessAsMuch) {
  const std::vector<std::int64_t> elements(40, 100'000);
  Bucket bucket;
  for (std::size_t i = 0; i < elements.size(); ++i) bucket.push_back(i);
  const BucketLayout layout(elements, bucket, 4, Divided::Whole);
  for (int rank = 0; rank < 4; ++rank) {
    std::int64_t mine = 0;
    for (const Piece& piece : layout.pieces_of(rank)) mine += piece.count;
    EXPECT_NEAR(static_cast<double>(mine), 1e6, 3e3) << rank;
  }
}

}  // namespace
}  // namespace snug::parallel
