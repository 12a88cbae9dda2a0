#include "snug/replay/weak_tensors.h"

#include <unordered_set>
#include <utility>

namespace snug::replay {

std::vector<at::Tensor> WeakTensors::add(const std::vector<at::Tensor>& tensors) {
  std::unordered_set<const void*> known;
  for (const auto& weak : tensors_) known.insert(weak._unsafe_get_target());  // an address that it pins
  std::vector<at::Tensor> added;
  for (const at::Tensor& tensor : tensors) {
    if (!known.insert(tensor.unsafeGetTensorImpl()).second) continue;
    tensors_.emplace_back(tensor.getIntrusivePtr());
    added.push_back(tensor);
  }
  return added;
}

std::vector<at::Tensor> WeakTensors::alive() {
  std::vector<at::Tensor> all;
  std::erase_if(tensors_, [&](const auto& weak) {
    auto tensor = weak.lock();
    if (!tensor.defined()) return true;
    all.emplace_back(std::move(tensor));
    return false;
  });
  return all;
}

}  // namespace snug::replay
