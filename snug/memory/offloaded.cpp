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

std::span<std::byte> all_of(const c10::Storage& storage, Bytes bytes) {
  return {static_cast<std::byte*>(storage.mutable_data()), static_cast<std::size_t>(bytes)};
}

}  // namespace

Offloaded Offloaded::sent(const c10::Storage& storage, Bytes bytes, Tiers& tiers, Tier tier) {
  const c10::Device device = storage.device();
  const at::Tensor contents = byte_tensor(storage, bytes);
  if (tier == Tier::Host) {
    HostPool::Block block = tiers.host(device.type()).take(bytes);
    StreamMark left = tiers.links().to_host(
        device, [&] { tensor_of(block.bytes()).copy_(contents, /*non_blocking=*/!device.is_cpu()); });
    return {device, bytes, tiers.links(), std::move(block), std::move(left)};
  }
  SpillFile& file = tiers.disk();
  // By way of the host where the device's memory cannot be read from there.
  const at::Tensor readable = device.is_cpu() ? contents : contents.cpu();
  const std::span data(static_cast<const std::byte*>(readable.storage().data()), static_cast<std::size_t>(bytes));
  auto block = std::make_shared<SpillFile::Block>(file.reserve(data));
  const auto write = [&file, block, data] { file.write(*block, data); };
  StreamMark left;
  if (device.is_cpu()) {
    left = tiers.links().to_disk(write);
  } else {
    write();
  }
  return {device, bytes, tiers.links(), OnDisk{&file, std::move(block)}, std::move(left)};
}

Offloaded::Arriving Offloaded::fetch() const {
  c10::Storage storage = at::empty({bytes_}, at::TensorOptions(at::kByte).device(device_)).storage();
  const auto* const block = std::get_if<HostPool::Block>(&place_);
  if (block == nullptr && device_.is_cpu()) {
    const auto& [file, there] = std::get<OnDisk>(place_);
    StreamMark read = links_->from_disk([file = file, there = there, left = left_, room = all_of(storage, bytes_)] {
      left.wait();
      file->read(*there, room);
    });
    return {std::move(storage), std::move(read)};
  }
  if (block == nullptr) {
    write_to(storage);
    return {std::move(storage), {}};
  }
  StreamMark there = links_->to_device(device_, left_, [&] {
    byte_tensor(storage, bytes_).copy_(tensor_of(block->bytes()), /*non_blocking=*/!device_.is_cpu());
  });
  return {std::move(storage), std::move(there)};
}

void Offloaded::write_to(const c10::Storage& storage) const {
  at::Tensor contents = byte_tensor(storage, bytes_);
  left_.wait();
  if (const auto* const block = std::get_if<HostPool::Block>(&place_)) {
    contents.copy_(tensor_of(block->bytes()));
    return;
  }
  const auto& [file, block] = std::get<OnDisk>(place_);
  if (device_.is_cpu()) return file->read(*block, all_of(storage, bytes_));
  const at::Tensor read = at::empty({bytes_}, at::TensorOptions(at::kByte).device(at::kCPU));
  file->read(*block, all_of(read.storage(), bytes_));
  contents.copy_(read);
}

}  // namespace snug::memory
