#include "snug/replay/passed_nodes.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <vector>

namespace snug::replay {
namespace {

using torch::autograd::Node;

bool accumulates(const Node& node) { return node.next_edges().empty(); }

}  // namespace

void PassedNodes::add(const torch::autograd::edge_list& roots) {
  std::vector<const Node*> found, next;
  std::unordered_set<const Node*> seen;
  const auto note = [&](const torch::autograd::Edge& edge) {
    const Node* const node = edge.function.get();
    if (node == nullptr || accumulates(*node) || have(*node) || !seen.insert(node).second) return;
    found.push_back(node);
    next.push_back(node);
  };
  std::ranges::for_each(roots, note);
  while (!next.empty()) {
    const Node* const node = next.back();
    next.pop_back();
    std::ranges::for_each(node->next_edges(), note);
  }
  std::ranges::sort(found, {}, &Node::sequence_nr);
  for (const Node* const node : found) {
    Ranges& ranges = by_thread_[node->thread_id()];
    const std::uint64_t number = node->sequence_nr();
    const auto behind = ranges.upper_bound(number);
    auto own = behind;
    if (behind != ranges.begin() && std::prev(behind)->second == number) {
      own = std::prev(behind);
      own->second = number + 1;
    } else {
      own = ranges.emplace_hint(behind, number, number + 1);
    }
    if (behind != ranges.end() && behind->first == number + 1) {
      own->second = behind->second;
      ranges.erase(behind);
    }
  }
}

bool PassedNodes::have(const Node& node) const {
  const auto ranges = by_thread_.find(node.thread_id());
  if (ranges == by_thread_.end()) return false;
  const auto next = ranges->second.upper_bound(node.sequence_nr());
  return next != ranges->second.begin() && node.sequence_nr() < std::prev(next)->second;
}

bool PassedNodes::have_all_of(const at::Tensor& made) const {
  std::vector<const Node*> next;
  std::unordered_set<const Node*> seen;
  const auto look_at = [&](const Node* node) {
    if (node != nullptr && !have(*node) && seen.insert(node).second) next.push_back(node);
  };
  look_at(made.grad_fn().get());
  while (!next.empty()) {
    const Node* const node = next.back();
    next.pop_back();
    if (accumulates(*node)) return false;
    for (const auto& edge : node->next_edges()) look_at(edge.function.get());
  }
  return true;
}

}  // namespace snug::replay
