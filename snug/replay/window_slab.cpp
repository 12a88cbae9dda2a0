#include "snug/replay/window_slab.h"

#include <ATen/ops/empty.h>

#include <cstdint>
#include <exception>
#include <utility>

#include "snug/memory/block_file.h"
#include "snug/memory/byte_tensor.h"
#include "snug/memory/tag.h"

namespace snug::replay {
namespace {

constexpr Bytes kPage = memory::BlockFile::kPage;

}  // namespace

Bytes WindowSlab::whole_pages(Bytes bytes) { return (bytes + kPage - 1) / kPage * kPage; }

Bytes WindowSlab::memory_for(Bytes bytes) { return bytes == 0 ? 0 : whole_pages(bytes) + kPage; }

c10::Storage WindowSlab::new_memory(Bytes bytes, c10::Device device) {
  const memory::TagScope tag(memory::Tag::Weights);
  return at::empty({bytes}, at::TensorOptions(at::kByte).device(device)).storage();
}

at::Tensor WindowSlab::part(Bytes offset, Bytes bytes) const {
  const auto into_page =
      static_cast<Bytes>(reinterpret_cast<std::uintptr_t>(memory_.data()) % static_cast<std::uintptr_t>(kPage));
  return memory::byte_tensor(memory_, bytes, (into_page == 0 ? 0 : kPage - into_page) + offset);
}

void WindowSlab::goes_on(Bytes offset, Bytes bytes, memory::StreamMark mark) {
  if (mark) copies_.push_back({offset, offset + whole_pages(bytes), std::move(mark)});
}

std::vector<memory::StreamMark> WindowSlab::going_on(Bytes offset, Bytes bytes) {
  std::erase_if(copies_, [](const Copy& copy) { return copy.mark.reached(); });
  std::vector<memory::StreamMark> marks;
  for (const Copy& copy : copies_) {
    if (copy.begin < offset + whole_pages(bytes) && offset < copy.end) marks.push_back(copy.mark.without_outcome());
  }
  return marks;
}

void WindowSlab::wait() {
  std::exception_ptr failure;
  for (const Copy& copy : std::exchange(copies_, {})) {
    try {
      copy.mark.wait();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace snug::replay
