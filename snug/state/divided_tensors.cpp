#include "snug/state/divided_tensors.h"

#include <ATen/ops/empty.h>

#include <cstring>

#include "snug/memory/owned_contents.h"

namespace snug::state {

void copy_from_whole(const at::Tensor& whole, const TensorPart& part) {
  const std::int64_t count = part.part.numel(), end = part.first + count;
  if (count == 0) return;
  at::Tensor elements;
  if (part.runs.at(end - 1) - part.runs.at(part.first) == count - 1) {
    elements = whole.narrow(0, part.runs.at(part.first), count);
  } else {
    elements = at::empty({count}, whole.options());
    const std::size_t size = whole.itemsize();
    const auto* const from = static_cast<const std::byte*>(whole.const_data_ptr());
    auto* const to = static_cast<std::byte*>(elements.mutable_data_ptr());
    part.runs.each_run(part.first, end, [&](std::int64_t i, std::int64_t at, std::int64_t length) {
      std::memcpy(to + static_cast<std::size_t>(i - part.first) * size, from + static_cast<std::size_t>(at) * size,
                  static_cast<std::size_t>(length) * size);
    });
  }
  at::Tensor(part.part).copy_(elements.view(part.part.sizes()));
}

TensorSource::TensorSource(const at::Tensor& tensor)
    : TensorSource(tensor.scalar_type(), tensor.sizes().vec(),
                   [tensor](const std::function<void(std::span<const std::byte>)>& write) {
                     const at::Tensor whole = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg();
                     const memory::ContentsThere there(whole.storage());
                     write({static_cast<const std::byte*>(whole.const_data_ptr()), whole.nbytes()});
                   }) {}

}  // namespace snug::state
