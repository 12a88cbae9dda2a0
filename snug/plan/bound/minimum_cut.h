#pragma once

#include <cstdint>
#include <vector>

namespace snug::plan {

/// A network of nodes 0 .. n-1 between a source and a sink, of which the cheapest cut is asked. The only file that
/// knows the library behind it (Boost.Graph).
class CutNetwork {
 public:
  using Capacity = std::int64_t;
  /// More than any cut; sums of a few stay within range.
  static constexpr Capacity kInfinite = Capacity{1} << 60;

  explicit CutNetwork(std::int32_t nodes) : nodes_(nodes) {}

  void from_source(std::int32_t node, Capacity capacity) { edges_.push_back({nodes_, node, capacity}); }
  void to_sink(std::int32_t node, Capacity capacity) { edges_.push_back({node, nodes_ + 1, capacity}); }
  void edge(std::int32_t from, std::int32_t to, Capacity capacity) { edges_.push_back({from, to, capacity}); }

  struct Cut {
    Capacity capacity = 0;
    std::vector<char> source_side;  ///< by node
  };
  /// A cut of the least capacity; capacities must not be negative.
  [[nodiscard]] Cut minimum() const;

 private:
  struct Edge {
    std::int32_t from, to;
    Capacity capacity;
  };
  std::int32_t nodes_;
  std::vector<Edge> edges_;
};

}  // namespace snug::plan
