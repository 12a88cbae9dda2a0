#include "snug/record/leaf_names.h"

#include <c10/core/Storage.h>
#include <fmt/format.h>

#include <mutex>
#include <unordered_map>

namespace snug::record {
namespace {

struct Named {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // pins the address
  std::string name;
};
std::mutex g_mutex;
std::unordered_map<const c10::StorageImpl*, Named>& table() {
  static auto* names = new std::unordered_map<const c10::StorageImpl*, Named>;
  return *names;
}

}  // namespace

void name_tensors(const std::vector<std::pair<std::string, at::Tensor>>& names) {
  const std::lock_guard lock(g_mutex);
  std::erase_if(table(), [](const auto& entry) { return entry.second.storage.expired(); });
  for (const auto& [name, tensor] : names) {
    if (!tensor.defined() || !tensor.has_storage()) continue;
    const c10::Storage& storage = tensor.storage();
    table().insert_or_assign(storage.unsafeGetStorageImpl(), Named{storage.getWeakStorageImpl(), name});
  }
}

std::string leaf_name(const c10::StorageImpl* storage, Bytes bytes) {
  const std::lock_guard lock(g_mutex);
  const auto found = table().find(storage);
  if (found == table().end()) return fmt::format("a tensor of {}", format_bytes(bytes));
  return fmt::format("{} ({})", found->second.name, format_bytes(bytes));
}

}  // namespace snug::record
