#include "snug/memory/offloaded.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "snug/memory/byte_tensor.h"

namespace snug::memory {
namespace {

c10::Storage copied_to(const c10::Storage& storage, Bytes bytes, c10::Device device) {
  return byte_tensor(storage, bytes).to(device).storage();
}

}  // namespace

Offloaded::Offloaded(const c10::Storage& storage, Bytes bytes, std::shared_ptr<SpillFile>& file)
    : device_(storage.device()), bytes_(bytes) {
  if (!device_.is_cpu()) {
    place_ = copied_to(storage, bytes, c10::Device(c10::kCPU));
    return;
  }
  if (!file) file = std::make_shared<SpillFile>();
  const auto* data = static_cast<const std::byte*>(storage.data());
  place_ = InFile{file, file->append({data, static_cast<std::size_t>(bytes)})};
}

c10::Storage Offloaded::load() const {
  if (const auto* copy = std::get_if<c10::Storage>(&place_)) return copied_to(*copy, bytes_, device_);
  c10::Storage storage = at::empty({bytes_}, at::TensorOptions(at::kByte).device(device_)).storage();
  write_to(storage);
  return storage;
}

void Offloaded::write_to(const c10::Storage& storage) const {
  if (const auto* copy = std::get_if<c10::Storage>(&place_)) {
    byte_tensor(storage, bytes_).copy_(byte_tensor(*copy, bytes_));
    return;
  }
  const auto& in_file = std::get<InFile>(place_);
  in_file.file->read(in_file.offset,
                     {static_cast<std::byte*>(storage.mutable_data()), static_cast<std::size_t>(bytes_)});
}

}  // namespace snug::memory
