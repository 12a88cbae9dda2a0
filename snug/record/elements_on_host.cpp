#include "snug/record/elements_on_host.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "snug/memory/byte_tensor.h"
#include "snug/record/unseen.h"

namespace snug::record {

ElementsOnHost::ElementsOnHost(const at::Tensor& tensor)
    : there_(tensor),
      item_size_(static_cast<Bytes>(tensor.itemsize())),
      bytes_(static_cast<Bytes>(tensor.nbytes())),
      dims_(static_cast<std::size_t>(tensor.dim())) {
  if (bytes_ == 0) return;
  std::int64_t last = 0;  // element, from the first one on
  for (std::size_t d = 0; d < dims_; ++d) {
    const std::int64_t size = tensor.sizes()[d], stride = tensor.strides()[d];
    if (size != 1) order_.push_back({size, stride, d});
    last += (size - 1) * stride;
  }
  std::ranges::stable_sort(order_, std::greater<>(), &Dimension::stride);
  for (const Dimension& inner : order_) {
    if (!merged_.empty() && merged_.back().stride == inner.size * inner.stride) {
      merged_.back().size *= inner.size;
      merged_.back().stride = inner.stride;
    } else {
      merged_.push_back(inner);
    }
  }
  const Bytes offset = tensor.storage_offset() * item_size_;
  if (tensor.is_cpu()) {
    data_ = static_cast<const std::byte*>(tensor.storage().data()) + offset;
    return;
  }
  const Unseen unseen;
  const at::Tensor there = memory::byte_tensor(tensor.storage(), (last + 1) * item_size_, offset);
  copied_.resize(there.nbytes());
  at::from_blob(copied_.data(), there.sizes(), there.options().device(at::kCPU)).copy_(there);
  data_ = copied_.data();
}

std::span<const std::byte> ElementsOnHost::read(Bytes begin, Bytes length, std::byte* buffer) const {
  const auto as_span = [&](const std::byte* from) { return std::span(from, static_cast<std::size_t>(length)); };
  const bool in_runs = !merged_.empty() && merged_.back().stride == 1;
  if (merged_.empty() || (in_runs && merged_.size() == 1)) return as_span(data_ + begin);
  // A run is contiguous; the dimensions in front of it are counted like the digits of a number.
  const std::size_t digits = merged_.size() - (in_runs ? 1 : 0);
  const Bytes run = (in_runs ? merged_.back().size : 1) * item_size_;
  std::vector<std::int64_t> index(digits);
  std::int64_t rest = begin / run, from = 0;
  for (std::size_t d = digits; d-- > 0;) {
    index[d] = rest % merged_[d].size;
    rest /= merged_[d].size;
    from += index[d] * merged_[d].stride;
  }
  Bytes in_run = begin % run;
  for (Bytes done = 0; done < length;) {
    const Bytes now = std::min(run - in_run, length - done);
    std::memcpy(buffer + done, data_ + from * item_size_ + in_run, static_cast<std::size_t>(now));
    done += now;
    in_run = 0;
    for (std::size_t d = digits; d-- > 0;) {
      from += merged_[d].stride;
      if (++index[d] < merged_[d].size) break;
      from -= index[d] * merged_[d].stride;
      index[d] = 0;
    }
  }
  return as_span(buffer);
}

std::vector<std::int64_t> ElementsOnHost::index_of(std::int64_t place) const {
  std::vector<std::int64_t> index(dims_, 0);
  for (auto dimension = order_.rbegin(); dimension != order_.rend(); ++dimension) {
    index[dimension->of_tensor] = place % dimension->size;
    place /= dimension->size;
  }
  return index;
}

}  // namespace snug::record
