#include "snug/memory/offloaded.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "snug/memory/byte_tensor.h"
#include "snug/memory/owned_contents.h"

namespace snug::memory {

Offloaded Offloaded::sent(const c10::Storage& storage, Bytes bytes, Tiers& tiers, Tier tier) {
  const ContentsThere there(storage);
  TierRoom room(bytes, storage.device(), tiers, tier, storage.data());
  const StreamMark left = room.write(byte_tensor(storage, bytes));
  if (ownership_of(*storage.unsafeGetStorageImpl()) != nullptr) left.wait();
  return Offloaded(std::move(room));
}

Offloaded::Arriving Offloaded::fetch() const {
  c10::Storage storage = at::empty({bytes()}, at::TensorOptions(at::kByte).device(room_.device())).storage();
  StreamMark there = room_.read(byte_tensor(storage, bytes()));
  return {std::move(storage), std::move(there)};
}

void Offloaded::write_to(const c10::Storage& storage) const {
  const ContentsThere there(storage, Access::Write);
  room_.read_now(byte_tensor(storage, bytes()));
}

}  // namespace snug::memory
