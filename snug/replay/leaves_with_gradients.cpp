#include "snug/replay/leaves_with_gradients.h"

#include <unordered_set>

namespace snug::replay {

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
