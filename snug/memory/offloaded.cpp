#include "snug/memory/offloaded.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstddef>
#include <span>
#include <utility>

#include "snug/memory/byte_tensor.h"

namespace snug::memory {
namespace {

at::Tensor tensor_of(std::span<std::byte> bytes) {
  return at::from_blob(bytes.data(), {std::ssize(bytes)}, at::TensorOptions(at::kByte));
}

}  // namespace

Offloaded::Offloaded(const c10::Storage& storage, Bytes bytes, Tiers& tiers, Tier tier)
    : device_(storage.device()), bytes_(bytes), place_(placed(storage, bytes, tiers, tier)) {}

Offloaded::Place Offloaded::placed(const c10::Storage& storage, Bytes bytes, Tiers& tiers, Tier tier) {
  const at::Tensor contents = byte_tensor(storage, bytes);
  if (tier == Tier::Host) {
    HostPool::Block block = tiers.host(storage.device_type()).take(bytes);
    tensor_of(block.bytes()).copy_(contents);
    return block;
  }
  SpillFile& file = tiers.disk();
  // By way of the host where the device's memory cannot be read from there.
  const at::Tensor readable = storage.device().is_cpu() ? contents : contents.cpu();
  const auto* const data = static_cast<const std::byte*>(readable.storage().data());
  return OnDisk{&file, file.write({data, static_cast<std::size_t>(bytes)})};
}

c10::Storage Offloaded::load() const {
  c10::Storage storage = at::empty({bytes_}, at::TensorOptions(at::kByte).device(device_)).storage();
  write_to(storage);
  return storage;
}

void Offloaded::write_to(const c10::Storage& storage) const {
  at::Tensor contents = byte_tensor(storage, bytes_);
  if (const auto* const block = std::get_if<HostPool::Block>(&place_)) {
    contents.copy_(tensor_of(block->bytes()));
    return;
  }
  const auto& [file, block] = std::get<OnDisk>(place_);
  if (device_.is_cpu()) {
    file->read(block, {static_cast<std::byte*>(storage.mutable_data()), static_cast<std::size_t>(bytes_)});
    return;
  }
  const at::Tensor read = at::empty({bytes_}, at::TensorOptions(at::kByte));
  file->read(block, {static_cast<std::byte*>(read.storage().mutable_data()), static_cast<std::size_t>(bytes_)});
  contents.copy_(read);
}

}  // namespace snug::memory
