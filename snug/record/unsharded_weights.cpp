#include "snug/record/unsharded_weights.h"

#include <algorithm>

namespace snug::record {

void UnshardedWeights::gathered(const c10::Storage& storage, Group group) {
  storages_.emplace(storage.unsafeGetStorageImpl(), Target{storage.getWeakStorageImpl(), group});
}

void UnshardedWeights::add_weight(plan::ValueId leaf, const c10::Storage& storage) {
  const auto found = storages_.find(storage.unsafeGetStorageImpl());
  if (found == storages_.end() || storage.nbytes() == 0) return;
  const Group group = found->second.group;
  weights_.emplace(leaf, group);
  one_of_.emplace(group, Weight{storage, static_cast<Bytes>(storage.nbytes())});
}

UnshardedWeights::Group UnshardedWeights::group_of(std::span<const plan::ValueId> inputs) const {
  Group group = plan::kAlwaysThere;
  if (weights_.empty()) return group;
  for (const plan::ValueId input : inputs) {
    const auto weight = weights_.find(input);
    if (weight == weights_.end() || weight->second == group) continue;
    group = group == plan::kAlwaysThere ? weight->second : plan::kSeveralGroups;
  }
  return group;
}

void UnshardedWeights::add_result(plan::ValueId value, std::span<const plan::ValueId> inputs) {
  Groups needed;
  const auto add = [&](Group group) {
    if (std::ranges::find(needed, group) == needed.end()) needed.push_back(group);
  };
  for (const plan::ValueId input : inputs) {
    if (const auto weight = weights_.find(input); weight != weights_.end()) add(weight->second);
    if (const auto made = needs_.find(input); made != needs_.end()) std::ranges::for_each(made->second, add);
  }
  if (!needed.empty()) needs_.emplace(value, std::move(needed));
}

bool UnshardedWeights::is_there(Group group) const {
  const auto weight = one_of_.find(group);
  return weight == one_of_.end() || static_cast<Bytes>(weight->second.storage.nbytes()) == weight->second.bytes;
}

bool UnshardedWeights::can_be_made_here(plan::ValueId value) const {
  const auto needed = needs_.find(value);
  return needed == needs_.end() || std::ranges::all_of(needed->second, [this](Group group) { return is_there(group); });
}

}  // namespace snug::record
