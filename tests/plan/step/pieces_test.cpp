#include "snug/plan/step/pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "tests/plan/random_graph.h"

namespace snug::plan {
namespace {

using synthetic::GraphBuilder;
using synthetic::kOpsBefore;
using synthetic::kOpsPerBlock;
using ::testing::ElementsAre;

/// How many values that operators before p made are read by operators from p on.
int crossing(const Dataflow& flow, OpId p) {
  int count = 0;
  for (ValueId v = 0; v < flow.values(); ++v) {
    if (flow.is_leaf(v) || flow.producer(v) >= p) continue;
    bool read = false;
    for (OpId op = p; op < flow.ops(); ++op) {
      for (ValueId input : flow.inputs(op)) read = read || input == v;
    }
    count += read;
  }
  return count;
}

TEST(CutPoints, CutARowEverywhere) {
  GraphBuilder g;
  ValueId v = g.leaf();
  for (int i = 0; i < 4; ++i) v = g.op("op", {v}, 1);
  EXPECT_THAT(cut_points(g.graph()), ElementsAre(0, 1, 2, 3, 4));
}

TEST(CutPoints, DoNotCutThroughAResidual) {
  GraphBuilder g;
  const ValueId x = g.op("in", {g.leaf()}, 1);
  const ValueId a = g.op("a", {x}, 1);
  const ValueId b = g.op("b", {a}, 1);
  const ValueId sum = g.op("add", {x, b}, 1);
  g.op("out", {sum}, 1);
  EXPECT_THAT(cut_points(g.graph()), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(cut_points(g.graph(), 2), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(CutPoints, IgnoreLeaves) {
  GraphBuilder g;
  const ValueId weight = g.leaf();
  const ValueId a = g.op("a", {weight}, 1);
  const ValueId b = g.op("b", {a, weight}, 1);
  g.op("c", {b, weight}, 1);
  EXPECT_THAT(cut_points(g.graph()), ElementsAre(0, 1, 2, 3));
}

TEST(CutPoints, OfAnEmptyStepAreItsStart) { EXPECT_THAT(cut_points(GraphBuilder().graph()), ElementsAre(0)); }

TEST(CutPoints, AreWhereFewValuesCrossInRandomSteps) {
  int inner = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StepGraph graph = synthetic::random_graph(seed, 20);
    for (int limit = 1; limit <= 3; ++limit) {
      const std::vector<OpId> cuts = cut_points(graph, limit);
      ASSERT_EQ(cuts.front(), 0);
      ASSERT_EQ(cuts.back(), graph.flow.ops());
      for (OpId p = 1; p < graph.flow.ops(); ++p) {
        const int values = crossing(graph.flow, p);
        // Where nothing crosses there is nothing to keep, and no cut either.
        ASSERT_EQ(std::ranges::find(cuts, p) != cuts.end(), values >= 1 && values <= limit) << "position " << p;
        inner += values >= 1 && values <= limit;
      }
    }
  }
  EXPECT_GT(inner, 200);
}

TEST(RepeatedBlocks, FindTheBlocksOfAChain) {
  for (const int blocks : {2, 3, 4, 7, 12, 48}) {
    SCOPED_TRACE(blocks);
    const std::vector<SegmentRange> found = repeated_blocks(synthetic::gpt_like({.blocks = blocks}));
    ASSERT_EQ(found.size(), static_cast<std::size_t>(blocks));
    for (int i = 0; i < blocks; ++i) {
      EXPECT_EQ(found[static_cast<std::size_t>(i)],
                (SegmentRange{kOpsBefore + i * kOpsPerBlock, kOpsBefore + (i + 1) * kOpsPerBlock}));
    }
  }
}

TEST(RepeatedBlocks, AreFoundThoughAllOfThemReadTheSameTables) {
  for (const int blocks : {2, 8, 30}) {
    SCOPED_TRACE(blocks);
    const std::vector<SegmentRange> found = repeated_blocks(synthetic::deep_net({.blocks = blocks}));
    ASSERT_EQ(found.size(), static_cast<std::size_t>(blocks));
    for (const SegmentRange& block : found) EXPECT_EQ(block.end - block.begin, synthetic::kOpsPerDeepBlock);
  }
}

/// Of pre-norm blocks, of which the first reads what another process has sent.
TEST(RepeatedBlocks, OfAStageBeginWithWhatItIsGiven) {
  for (const int blocks : {2, 3, 8}) {
    SCOPED_TRACE(blocks);
    GraphBuilder g;
    g.op("zeros", {}, 4);  // of an autograd function that hands it on
    ValueId x = g.leaf();
    const auto branch = [&](std::initializer_list<const char*> names) {
      ValueId v = x;
      for (const char* name : names) v = g.op(name, {v, g.leaf()}, 1_MiB);
      x = g.op("add", {x, v}, 1_MiB);
    };
    for (int i = 0; i < blocks; ++i) {
      branch({"norm", "qkv", "attend", "out"});
      branch({"norm", "up", "gelu", "down"});
    }
    StepGraph graph = g.graph();
    graph.stages = {1};
    const std::vector<SegmentRange> found = repeated_blocks(graph);
    ASSERT_EQ(found.size(), static_cast<std::size_t>(blocks));
    for (int i = 0; i < blocks; ++i) EXPECT_EQ(found[at(i)], (SegmentRange{10 * i + 1, 10 * (i + 1) + 1}));
  }
}

TEST(ChainCuts, CutEachBlockAlikeWhereThereIsRoomForIt) {
  const StepGraph graph = synthetic::gpt_like({.blocks = 30});
  for (const std::size_t limit : {32U, 40U, 62U}) {
    SCOPED_TRACE(limit);
    const std::vector<OpId> cuts = chain_cuts(graph, limit);
    ASSERT_LE(cuts.size(), limit + 1);
    std::vector<int> cut_at(kOpsPerBlock, 0);  // by position in a block
    for (OpId p : cuts) {
      if (p >= kOpsBefore && p < kOpsBefore + 30 * kOpsPerBlock) ++cut_at[(p - kOpsBefore) % kOpsPerBlock];
    }
    for (const int blocks : cut_at) EXPECT_TRUE(blocks == 0 || blocks == 30) << blocks;
    EXPECT_EQ(std::ranges::count(cut_at, 30), limit == 62 ? 2 : 1);
  }
}

TEST(RepeatedBlocks, AreNoneWhenNothingRepeats) {
  EXPECT_TRUE(repeated_blocks(synthetic::gpt_like({.blocks = 1})).size() <= 2);
  GraphBuilder g;
  ValueId v = g.leaf();
  for (const char* name : {"a", "b", "c", "d"}) v = g.op(name, {v}, 1);
  EXPECT_TRUE(repeated_blocks(g.graph()).empty());
  EXPECT_TRUE(repeated_blocks(GraphBuilder().graph()).empty());
}

TEST(RepeatedBlocks, TakeTheLongestRunAndWholePeriodsOnly) {
  GraphBuilder g;
  ValueId v = g.leaf();
  for (const char* name : {"x", "x", "a", "b", "a", "b", "a", "b", "a"}) v = g.op(name, {v}, 1);
  EXPECT_THAT(repeated_blocks(g.graph()), ElementsAre(SegmentRange{2, 4}, SegmentRange{4, 6}, SegmentRange{6, 8}));
}

/// The longest whole repetitions of the shortest period, the first of equals, by looking at all of them.
std::vector<SegmentRange> longest_by_all(const std::vector<int>& kinds) {
  std::size_t begin = 0, period = 0, length = 0;
  for (std::size_t p = 1; p <= kinds.size() / 2; ++p) {
    for (std::size_t b = 0; b + 2 * p <= kinds.size(); ++b) {
      std::size_t end = b + p;
      while (end < kinds.size() && kinds[end] == kinds[end - p]) ++end;
      const std::size_t whole = (end - b) / p * p;
      if (whole >= 2 * p && whole > length) begin = b, period = p, length = whole;
    }
  }
  std::vector<SegmentRange> blocks;
  for (std::size_t i = begin; i < begin + length; i += period)
    blocks.push_back({static_cast<OpId>(i), static_cast<OpId>(i + period)});
  return blocks;
}

TEST(RepeatedBlocks, AreTheLongestOfAllRepetitions) {
  int several = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    synthetic::Dice dice(seed);
    const int alphabet = 2 + dice.roll(3), few = 1 + dice.roll(6);
    std::vector<int> kinds;
    for (int ops = dice.roll(80); std::ssize(kinds) < ops;) {
      // A random operator, or again what came so many operators before.
      const bool again = dice.chance(60) && std::ssize(kinds) >= few;
      kinds.push_back(again ? kinds[kinds.size() - static_cast<std::size_t>(few)] : dice.roll(alphabet));
    }
    GraphBuilder g;
    ValueId v = g.leaf();
    for (const int kind : kinds) v = g.op(std::to_string(kind), {v}, 1);
    const std::vector<SegmentRange> blocks = repeated_blocks(g.graph());
    EXPECT_EQ(blocks, longest_by_all(kinds));
    several += blocks.size() > 2;
  }
  EXPECT_GT(several, 500);
}

/// As of an unrolled recurrent network: a minute where all periods were compared with all pieces, once for each preset.
TEST(RepeatedBlocks, OfALongStepAreFoundInOnePass) {
  constexpr int kOpsInARow = 100'000;
  GraphBuilder g;
  ValueId v = g.leaf();
  for (int i = 0; i < kOpsInARow; ++i) v = g.op(i % 7 == 6 ? "tanh" : "addmm", {v}, 1);
  const std::vector<SegmentRange> blocks = repeated_blocks(g.graph());
  ASSERT_EQ(blocks.size(), static_cast<std::size_t>(kOpsInARow / 7));
  EXPECT_EQ(blocks[1], (SegmentRange{7, 14}));
}

/// So many blocks of the operators, each of which saves so much.
ValueId add_blocks(GraphBuilder& g, ValueId v, int blocks, std::initializer_list<const char*> names, Bytes bytes) {
  for (int i = 0; i < blocks; ++i) {
    for (const char* name : names) g.save(v = g.op(name, {v}, bytes));
  }
  return v;
}

TEST(RepeatedBlocks, AreThoseOfEncoderAndDecoder) {
  GraphBuilder g;
  const ValueId encoded = add_blocks(g, g.leaf(), 6, {"norm", "attend"}, 1_MiB);
  const ValueId start = add_blocks(g, g.op("shift", {encoded}, 1), 2, {"tiny"}, 1_KiB);
  add_blocks(g, start, 4, {"norm", "attend", "cross"}, 1_MiB);
  const std::vector<SegmentRange> blocks = repeated_blocks(g.graph());
  ASSERT_EQ(blocks.size(), 10U) << "and not what saves next to nothing";
  EXPECT_EQ(blocks[5], (SegmentRange{10, 12}));
  EXPECT_EQ(blocks[6], (SegmentRange{15, 18}));
  EXPECT_EQ(blocks[9], (SegmentRange{24, 27}));
}

TEST(ChainCuts, AreInEachRunOfBlocks) {
  GraphBuilder g;
  const ValueId middle = g.op("_to_copy", {add_blocks(g, g.leaf(), 40, {"addmm", "gelu"}, 1_MiB)}, 1_MiB);
  add_blocks(g, middle, 40, {"addmm", "gelu"}, 1_MiB);
  const StepGraph& both = g.graph();
  const auto cuts_from = [](const std::vector<OpId>& cuts, OpId first) {
    return std::ranges::count_if(cuts, [&](OpId p) { return p >= first; });
  };
  EXPECT_GE(cuts_from(chain_cuts(both, 48), 81), 20);
  EXPECT_LE(chain_cuts(both, 48).size(), 49U);
  // All of them where what is on another device takes nothing here.
  StepGraph second = both;
  for (OpId op = 0; op <= 80; ++op) second.values[at(second.flow.outputs(op)[0].value)].device = 1;
  EXPECT_GE(cuts_from(chain_cuts(second, 48), 81), 40);
}

TEST(RepeatedBlocks, AreAlikeInEachRunOnRandomSteps) {
  int found = 0, several = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StepGraph graph = synthetic::random_graph(seed, 4 + static_cast<int>(seed % 30));
    const std::vector<SegmentRange> blocks = repeated_blocks(graph);
    ASSERT_NE(blocks.size(), 1U);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      ASSERT_LT(blocks[i].begin, blocks[i].end);
      ASSERT_LE(blocks[i].end, graph.flow.ops());
      if (i == 0) continue;
      ASSERT_GE(blocks[i].begin, blocks[i - 1].end);
      const auto alike = [&](const SegmentRange& a, const SegmentRange& b) {
        const auto name = [](const OpInfo& op) { return op.name; };
        return std::ranges::equal(std::span(graph.ops).subspan(at(a.begin), at(a.end - a.begin)),
                                  std::span(graph.ops).subspan(at(b.begin), at(b.end - b.begin)), {}, name, name);
      };
      const bool follows = blocks[i].begin == blocks[i - 1].end && alike(blocks[i], blocks[i - 1]);
      several += !follows;
      // Another run begins, which has a second block.
      ASSERT_TRUE(follows || (i + 1 < blocks.size() && alike(blocks[i], blocks[i + 1])));
    }
    found += !blocks.empty();
  }
  EXPECT_GT(found, 30);
  EXPECT_GT(several, 0);
}

}  // namespace
}  // namespace snug::plan
