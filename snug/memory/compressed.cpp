#include "snug/memory/compressed.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <span>

#include "snug/base/errors.h"
#include "snug/memory/byte_tensor.h"
#include "snug/memory/tensor_codec.h"

namespace snug::memory {
namespace {

c10::Storage room_for(Bytes bytes, c10::Device device) {
  return at::empty({bytes}, at::TensorOptions(at::kByte).device(device)).storage();
}

c10::Stream stream_now(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

std::span<const std::byte> contents_of(const c10::Storage& storage, Bytes bytes) {
  return {static_cast<const std::byte*>(storage.data()), static_cast<std::size_t>(bytes)};
}
std::span<std::byte> room_in(const c10::Storage& storage, Bytes bytes) {
  return {static_cast<std::byte*>(storage.mutable_data()), static_cast<std::size_t>(bytes)};
}

bool encode_in(const c10::Storage& storage, Bytes bytes, const Compressed::As& as, const c10::Storage& encoded) {
  if (!storage.device().is_cpu())
    return encode(as.codec, as.element, byte_tensor(storage, bytes), byte_tensor(encoded, as.bytes));
  return encode(as.codec, as.element, contents_of(storage, bytes), room_in(encoded, as.bytes));
}

}  // namespace

Compressed::Compressed(const c10::Storage& storage, Bytes bytes, As as)
    : bytes_(bytes), as_(as), encoded_(room_for(as.bytes, storage.device())) {
  if (!storage.device().is_cpu()) made_in_ = stream_now(storage.device());
  const bool is_whole = static_cast<Bytes>(storage.nbytes()) >= bytes;  // nobody has taken its memory away
  if (is_whole && encode_in(storage, bytes, as, encoded_)) return;
  throw Error(fmt::format("compress: {} do not fit into the {} that the plan has for them; they are kept",
                          format_bytes(bytes), format_bytes(as.bytes)));
}

c10::Storage Compressed::expand() const {
  const c10::Device device = encoded_.device();
  c10::Storage storage = room_for(bytes_, device);
  if (!made_in_) {
    decode(as_.codec, as_.element, contents_of(encoded_, as_.bytes), room_in(storage, bytes_));
    return storage;
  }
  decode(as_.codec, as_.element, byte_tensor(encoded_, as_.bytes), byte_tensor(storage, bytes_));
  if (const c10::Stream now = stream_now(device); now != *made_in_)
    c10::impl::VirtualGuardImpl(device.type()).recordDataPtrOnStream(encoded_.data_ptr(), now);
  return storage;
}

}  // namespace snug::memory
