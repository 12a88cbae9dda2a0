#include "snug/record/trial_gradients.h"

#include <mutex>
#include <unordered_set>

namespace snug::record {
namespace {

struct Trials {
  std::mutex mutex;
  std::unordered_multiset<const void*> leaves;
};
Trials& trials() {
  static auto* const all = new Trials;  // NOLINT: backward threads may outlive static objects
  return *all;
}

}  // namespace

TrialGradients::~TrialGradients() {
  Trials& all = trials();
  const std::lock_guard lock(all.mutex);
  for (const auto& leaf : leaves_) all.leaves.erase(all.leaves.find(leaf._unsafe_get_target()));
}

void TrialGradients::add(const at::Tensor& leaf) {
  Trials& all = trials();
  const std::lock_guard lock(all.mutex);
  leaves_.emplace_back(leaf.getIntrusivePtr());
  all.leaves.insert(leaf.unsafeGetTensorImpl());
}

bool TrialGradients::on(const at::Tensor& leaf) {
  Trials& all = trials();
  const std::lock_guard lock(all.mutex);
  return all.leaves.contains(leaf.unsafeGetTensorImpl());
}

}  // namespace snug::record
