#include "snug/replay/updated_leaves.h"

#include <algorithm>

namespace snug::replay {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

at::Tensor locked(const WeakTensor& tensor) { return at::Tensor(tensor.lock()); }

}  // namespace

void UpdatedLeaves::note(const std::vector<at::Tensor>& leaves) {
  for (auto& [address, of] : by_storage_) {
    std::erase_if(of.leaves, [&of = of](Leaf& leaf) {
      const at::Tensor tensor = locked(leaf.tensor);
      if (!tensor.defined()) {
        of.gone_with_gradient = of.gone_with_gradient || leaf.has_gradient;
        return true;
      }
      leaf.has_gradient = tensor.grad().defined();
      return false;
    });
  }
  std::erase_if(by_storage_, [](const auto& one) { return one.second.storage.expired(); });
  for (const at::Tensor& tensor : leaves) {
    if (!tensor.has_storage()) continue;
    const WeakTensor weak(tensor.getIntrusivePtr());
    const auto [found, is_new] = by_storage_.try_emplace(
        tensor.storage().unsafeGetStorageImpl(),
        OfStorage{.storage = tensor.storage().getWeakStorageImpl(), .leaves = {}, .gone_with_gradient = false});
    std::vector<Leaf>& known = found->second.leaves;
    if (std::ranges::any_of(known, [&](const Leaf& leaf) { return leaf.tensor == weak; })) continue;
    known.push_back({.tensor = weak, .has_gradient = tensor.grad().defined()});
  }
}

const UpdatedLeaves::OfStorage* UpdatedLeaves::find(const at::Tensor& written) const {
  if (!written.has_storage()) return nullptr;
  const auto found = by_storage_.find(written.storage().unsafeGetStorageImpl());
  return found != by_storage_.end() ? &found->second : nullptr;
}

bool UpdatedLeaves::hold(const at::Tensor& written) const { return find(written) != nullptr; }

bool UpdatedLeaves::hold_with_gradient(const at::Tensor& written) const {
  const OfStorage* const of = find(written);
  return of != nullptr && (of->gone_with_gradient || std::ranges::any_of(of->leaves, [](const Leaf& leaf) {
                             if (leaf.has_gradient) return true;  // it may have been taken from it since
                             const at::Tensor tensor = locked(leaf.tensor);
                             return tensor.defined() && tensor.grad().defined();
                           }));
}

}  // namespace snug::replay
