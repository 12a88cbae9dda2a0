#include "snug/replay/leaves_with_gradients.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <unordered_set>

namespace snug::replay {

std::vector<at::Tensor> leaves_of(const torch::autograd::edge_list& roots, const std::vector<at::Tensor>& read) {
  std::vector<at::Tensor> leaves;
  std::unordered_set<const torch::autograd::Node*> seen;
  std::unordered_set<const void*> known;
  std::vector<torch::autograd::Node*> stack;
  for (const torch::autograd::Edge& root : roots) stack.push_back(root.function.get());
  while (!stack.empty()) {
    torch::autograd::Node* node = stack.back();
    stack.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (auto* accumulate = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) leaves.push_back(accumulate->variable);
    for (const auto& edge : node->next_edges()) stack.push_back(edge.function.get());
  }
  for (const at::Tensor& leaf : leaves) known.insert(leaf.unsafeGetTensorImpl());
  for (const at::Tensor& leaf : read) {
    // What was a leaf when it was read may have been written in place since.
    if (leaf.is_leaf() && known.insert(leaf.unsafeGetTensorImpl()).second) leaves.push_back(leaf);
  }
  return leaves;
}

std::vector<at::Tensor> parameters_of(const record::Tape& tape, const torch::autograd::edge_list& roots,
                                      const std::vector<at::Tensor>& read) {
  std::vector<at::Tensor> leaves = leaves_of(roots, read);
  std::erase_if(leaves, [&](const at::Tensor& leaf) {
    return record::is_plain(leaf) && tape.values().made(leaf.storage().unsafeGetStorageImpl());
  });
  return leaves;
}

void add_missing(const std::vector<at::Tensor>& leaves, std::vector<at::Tensor>& all) {
  std::unordered_set<const void*> known;
  for (const at::Tensor& p : all) known.insert(p.unsafeGetTensorImpl());
  for (const at::Tensor& leaf : leaves) {
    if (known.insert(leaf.unsafeGetTensorImpl()).second) all.push_back(leaf);
  }
}

std::vector<at::Tensor> with_gradients(const std::vector<at::Tensor>& leaves, const std::vector<at::Tensor>& others) {
  std::vector<at::Tensor> all = leaves;
  add_missing(others, all);
  std::erase_if(all, [](const at::Tensor& leaf) { return !leaf.grad().defined(); });
  return all;
}

}  // namespace snug::replay
