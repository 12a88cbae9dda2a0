#include "snug/plan/bound/minimum_cut.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/plan/random_graph.h"

namespace snug::plan {
namespace {

using Capacity = CutNetwork::Capacity;

TEST(MinimumCut, CutsTheCheaperSideOfAPath) {
  CutNetwork network(2);
  network.from_source(0, 7);
  network.edge(0, 1, 3);
  network.to_sink(1, 5);
  const auto cut = network.minimum();
  EXPECT_EQ(cut.capacity, 3);
  EXPECT_TRUE(cut.source_side[0]);
  EXPECT_FALSE(cut.source_side[1]);
}

TEST(MinimumCut, IsEmptyWithoutNodesOrEdges) {
  EXPECT_EQ(CutNetwork(0).minimum().capacity, 0);
  EXPECT_EQ(CutNetwork(3).minimum().capacity, 0);
}

TEST(MinimumCut, IsTheCheapestOfAllCutsOfRandomNetworks) {
  struct Edge {
    int from, to;
    Capacity capacity;
  };
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    synthetic::Dice dice(seed);
    const int nodes = 1 + dice.roll(7), source = nodes, sink = nodes + 1;
    CutNetwork network(nodes);
    std::vector<Edge> edges;
    for (int i = 0; i < nodes; ++i) {
      if (dice.chance(50)) edges.push_back({source, i, dice.roll(20)}), network.from_source(i, edges.back().capacity);
      if (dice.chance(50)) edges.push_back({i, sink, dice.roll(20)}), network.to_sink(i, edges.back().capacity);
    }
    for (int i = 0; i < 2 * nodes; ++i) {
      const int from = dice.roll(nodes), to = dice.roll(nodes);
      if (from == to) continue;
      edges.push_back({from, to, dice.chance(25) ? CutNetwork::kInfinite : dice.roll(20)});
      network.edge(from, to, edges.back().capacity);
    }
    const auto capacity_of = [&](const auto& on_source_side) {
      Capacity sum = 0;
      for (const Edge& e : edges) {
        const bool from = e.from == source || (e.from < nodes && on_source_side(e.from));
        const bool to = e.to == source || (e.to < nodes && on_source_side(e.to));
        if (from && !to) sum = std::min(sum + e.capacity, CutNetwork::kInfinite);
      }
      return sum;
    };
    Capacity best = CutNetwork::kInfinite;
    for (unsigned mask = 0; mask < 1U << nodes; ++mask) {
      best = std::min(best, capacity_of([&](int i) { return (mask >> i & 1U) != 0; }));
    }
    const auto cut = network.minimum();
    ASSERT_EQ(cut.capacity, best) << "seed " << seed;
    ASSERT_EQ(capacity_of([&](int i) { return cut.source_side[static_cast<std::size_t>(i)] != 0; }), best);
  }
}

}  // namespace
}  // namespace snug::plan
