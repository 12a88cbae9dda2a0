#include "snug/memory/compressed.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <span>

#include "snug/base/errors.h"

namespace snug::memory {
namespace {

c10::Storage room_for(Bytes bytes) {
  return at::empty({bytes}, at::TensorOptions(at::kByte).device(at::kCPU)).storage();
}

std::span<const std::byte> contents_of(const c10::Storage& storage, Bytes bytes) {
  return {static_cast<const std::byte*>(storage.data()), static_cast<std::size_t>(bytes)};
}
std::span<std::byte> room_in(const c10::Storage& storage, Bytes bytes) {
  return {static_cast<std::byte*>(storage.mutable_data()), static_cast<std::size_t>(bytes)};
}

}  // namespace

Compressed::Compressed(const c10::Storage& storage, Bytes bytes, As as)
    : bytes_(bytes), as_(as), encoded_(room_for(as.bytes)) {
  const bool is_whole = static_cast<Bytes>(storage.nbytes()) >= bytes;  // nobody has taken its memory away
  if (is_whole && encode(as.codec, as.element, contents_of(storage, bytes), room_in(encoded_, as.bytes))) return;
  throw Error(fmt::format("compress: {} do not fit into the {} that the plan has for them; they are kept",
                          format_bytes(bytes), format_bytes(as.bytes)));
}

c10::Storage Compressed::expand() const {
  c10::Storage storage = room_for(bytes_);
  decode(as_.codec, as_.element, contents_of(encoded_, as_.bytes), room_in(storage, bytes_));
  return storage;
}

}  // namespace snug::memory
