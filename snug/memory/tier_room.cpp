#include "snug/memory/tier_room.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstddef>
#include <exception>
#include <future>
#include <span>

namespace snug::memory {
namespace {

at::Tensor tensor_of(std::span<std::byte> bytes) {
  return at::from_blob(bytes.data(), {std::ssize(bytes)}, at::TensorOptions(at::kByte));
}

std::span<const std::byte> contents_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}
std::span<std::byte> room_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

}  // namespace

TierRoom::Place TierRoom::place(Bytes bytes, c10::Device device, Tiers& tiers, Tier tier, const void* for_memory_at) {
  if (tier == Tier::Host) return tiers.host(device.type()).take(bytes);
  SpillFile& file = tiers.disk();
  const std::span like(static_cast<const std::byte*>(for_memory_at), static_cast<std::size_t>(bytes));
  return OnDisk{&file, std::make_shared<SpillFile::Block>(file.reserve(like))};
}

TierRoom::TierRoom(Bytes bytes, c10::Device device, Tiers& tiers, Tier tier, const void* for_memory_at)
    : device_(device),
      bytes_(bytes),
      links_(&tiers.links()),
      place_(place(bytes, device, tiers, tier, for_memory_at)) {}

StreamMark TierRoom::write(const at::Tensor& contents) {
  try {
    return written_ = begin_writing(contents);
  } catch (...) {
    std::promise<void> failed;
    failed.set_exception(std::current_exception());
    return written_ = StreamMark(failed.get_future().share());
  }
}

StreamMark TierRoom::begin_writing(const at::Tensor& contents) {
  if (const auto* const block = std::get_if<HostPool::Block>(&place_)) {
    return links_->to_host(device_,
                           [&] { tensor_of(block->bytes()).copy_(contents, /*non_blocking=*/!device_.is_cpu()); });
  }
  // By way of the host where the device's memory cannot be read from there.
  const at::Tensor readable = device_.is_cpu() ? contents : contents.cpu();
  const auto write = [there = std::get<OnDisk>(place_), data = contents_of(readable)] {
    there.file->write(*there.block, data);
  };
  if (device_.is_cpu()) return links_->to_disk(write);
  write();
  return {};
}

StreamMark TierRoom::read(const at::Tensor& contents, std::vector<StreamMark> after) const {
  after.push_back(written_);
  if (const auto* const block = std::get_if<HostPool::Block>(&place_)) {
    return links_->to_device(device_, after, [&] {
      at::Tensor(contents).copy_(tensor_of(block->bytes()), /*non_blocking=*/!device_.is_cpu());
    });
  }
  if (device_.is_cpu()) {
    return links_->from_disk([there = std::get<OnDisk>(place_), after = std::move(after), room = room_of(contents)] {
      for (const StreamMark& mark : after) mark.wait();
      there.file->read(*there.block, room);
    });
  }
  for (const StreamMark& mark : after) mark.wait();
  read_now(contents);
  return {};
}

void TierRoom::read_now(const at::Tensor& contents) const {
  written_.wait();
  if (const auto* const block = std::get_if<HostPool::Block>(&place_)) {
    at::Tensor(contents).copy_(tensor_of(block->bytes()));
    return;
  }
  const OnDisk& there = std::get<OnDisk>(place_);
  if (device_.is_cpu()) return there.file->read(*there.block, room_of(contents));
  const at::Tensor read = at::empty({bytes_}, at::TensorOptions(at::kByte).device(at::kCPU));
  there.file->read(*there.block, room_of(read));
  at::Tensor(contents).copy_(read);
}

}  // namespace snug::memory
