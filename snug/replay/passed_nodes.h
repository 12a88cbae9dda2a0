#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <map>
#include <unordered_map>

namespace snug::replay {

/// The nodes of autograd that backward passes went through, without owning them: graphs go when their program lets go
/// of them. Not synchronized.
class PassedNodes {
 public:
  /// A backward pass from these: notes all nodes that they lead to, but for those that accumulate gradients, which are
  /// part of any graph.
  void add(const torch::autograd::edge_list& roots);

  /// Whether the graph of a tensor leads to no leaf but through nodes that have been passed.
  [[nodiscard]] bool have_all_of(const at::Tensor& made) const;

 private:
  [[nodiscard]] bool have(const torch::autograd::Node& node) const;

  // Numbers of nodes, which each thread counts by itself: ranges, by their first one, and where they end.
  using Ranges = std::map<std::uint64_t, std::uint64_t>;
  std::unordered_map<std::uint64_t, Ranges> by_thread_;
};

}  // namespace snug::replay
