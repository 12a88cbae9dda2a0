#include "snug/replay/gradient_bytes.h"

#include <optional>
#include <unordered_set>

#include "snug/memory/owned_contents.h"
#include "snug/replay/wrapped_tensor.h"

namespace snug::replay {

Bytes gradient_bytes(const std::vector<at::Tensor>& parameters, const memory::DeviceMemory& memory) {
  std::unordered_set<const c10::StorageImpl*> storages;
  Bytes bytes = 0;
  for (const at::Tensor& p : parameters) {
    if (!p.grad().defined()) continue;
    const std::optional<WrappedTensor> wrapped = unwrapped(p.grad());
    for (const at::Tensor& gradient : wrapped ? wrapped->inside : std::vector{p.grad()}) {
      if (!gradient.has_storage() || gradient.device() != memory.device()) continue;
      if (memory::has_owner(gradient)) continue;  // it takes none
      if (storages.insert(gradient.storage().unsafeGetStorageImpl()).second)
        bytes += memory.rounded(static_cast<Bytes>(gradient.storage().nbytes()));
    }
  }
  return bytes;
}

}  // namespace snug::replay
