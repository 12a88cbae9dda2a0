#include "snug/memory/tier_room.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstddef>
#include <exception>
#include <future>
#include <span>

#include "snug/memory/byte_tensor.h"

namespace snug::memory {
namespace {

at::Tensor tensor_of(std::span<std::byte> bytes) {
  return at::from_blob(bytes.data(), {std::ssize(bytes)}, at::TensorOptions(at::kByte));
}

/// The same memory, without a share in it: who fetches contents keeps it until they are there, and an eviction that
/// waits for them finds no other owner.
at::Tensor not_owning(const at::Tensor& contents) {
  const std::size_t bytes = contents.nbytes();
  return byte_tensor(c10::Storage(c10::Storage::use_byte_size_t(), bytes,
                                  c10::DataPtr(contents.mutable_data_ptr(), contents.device()), /*allocator=*/nullptr),
                     static_cast<Bytes>(bytes));
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
  HostPool* const passage = device.is_cpu() ? nullptr : &tiers.passage(device.type());
  const std::span like(static_cast<const std::byte*>(passage == nullptr ? for_memory_at : nullptr),
                       static_cast<std::size_t>(bytes));  // blocks of the passage are pages
  return OnDisk{&file, std::make_shared<SpillFile::Block>(file.reserve(like)), passage};
}

TierRoom::TierRoom(Bytes bytes, c10::Device device, Tiers& tiers, Tier tier, const void* for_memory_at)
    : device_(device),
      bytes_(bytes),
      links_(&tiers.links()),
      place_(place(bytes, device, tiers, tier, for_memory_at)) {}

StreamMark TierRoom::write(const at::Tensor& contents) {
  // Held until written_ is set: a read must wait for a write that is only queued.
  const std::lock_guard lock(guards_->marks);
  StreamMark written;
  try {
    written = begin_writing(contents);
  } catch (...) {
    std::promise<void> failed;
    failed.set_exception(std::current_exception());
    written = StreamMark(failed.get_future().share());
  }
  return written_ = written;
}

StreamMark TierRoom::begin_writing(const at::Tensor& contents) {
  const auto copy_to = [&](std::span<std::byte> bytes) {
    const std::unique_lock lock(guards_->contents);
    return links_->to_host(device_, [&] { tensor_of(bytes).copy_(contents, /*non_blocking=*/!device_.is_cpu()); });
  };
  if (const auto* const block = std::get_if<HostPool::Block>(&place_)) return copy_to(block->bytes());
  const OnDisk& there = std::get<OnDisk>(place_);
  if (there.passage == nullptr) {
    return links_->to_disk([there, data = contents_of(contents), guards = guards_] {
      const std::unique_lock lock(guards->contents);
      there.file->write(*there.block, data);
    });
  }
  const auto on_the_way = std::make_shared<HostPool::Block>(there.passage->take(bytes_));
  return links_->to_disk([there, on_the_way, copied = copy_to(on_the_way->bytes())] {
    copied.wait();
    there.file->write(*there.block, on_the_way->bytes());
  });
}

StreamMark TierRoom::read(const at::Tensor& contents, std::vector<StreamMark> after) const {
  if (const auto* const block = std::get_if<HostPool::Block>(&place_)) {
    after.push_back(written_);
    return links_->to_device(device_, after, [&] {
      at::Tensor(contents).copy_(tensor_of(block->bytes()), /*non_blocking=*/!device_.is_cpu());
    });
  }
  const OnDisk& there = std::get<OnDisk>(place_);
  if (there.passage == nullptr) {
    after.push_back(written_);
    return links_->from_disk([there, after = std::move(after), room = room_of(contents), guards = guards_] {
      for (const StreamMark& mark : after) mark.wait();
      const std::shared_lock lock(guards->contents);
      there.file->read(*there.block, room);
    });
  }
  // Memory of the contents may be in use by what the stream has been given before.
  after.emplace_back(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  auto on_the_way = std::make_shared<HostPool::Block>(there.passage->take(bytes_));
  return links_->from_disk([there, contents = not_owning(contents), on_the_way, after = std::move(after),
                            written = written_, links = links_, device = device_] {
    written.wait();
    there.file->read(*there.block, on_the_way->bytes());
    links->to_device_after(device, after, [&] { at::Tensor(contents).copy_(tensor_of(on_the_way->bytes()), true); })
        .wait();
  });
}

void TierRoom::read_part(Bytes from, const at::Tensor& contents) const {
  StreamMark written;
  {
    const std::lock_guard lock(guards_->marks);
    written = written_;
  }
  written.wait();
  const std::shared_lock lock(guards_->contents);
  if (const auto* const block = std::get_if<HostPool::Block>(&place_)) {
    at::Tensor(contents).copy_(tensor_of(block->bytes().subspan(static_cast<std::size_t>(from), contents.nbytes())));
    return;
  }
  const OnDisk& there = std::get<OnDisk>(place_);
  there.file->read_part(*there.block, from, room_of(contents));
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
