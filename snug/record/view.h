#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <vector>

#include "snug/plan/step/ids.h"

namespace snug::record {

/// How a tensor looks at the storage of a value: geometry, no data. An undefined tensor has no value.
struct View {
  c10::DispatchKeySet keys;  // device, and the conjugate and negative bits
  std::int64_t offset = 0;   // in elements
  plan::ValueId value = plan::kNoValue;
  std::int32_t geometry = 0;  // where sizes and then strides begin in the pool
  std::uint16_t dimensions = 0;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::DeviceIndex device = -1;  // of several of its type; the CPU has none
  bool requires_grad = false;
};

/// Sizes and strides of many views in one block of memory.
class GeometryPool {
 public:
  /// The view of `tensor`, whose value the caller fills in. `tensor` must be a plain one (see is_plain).
  View add(const at::Tensor& tensor);

  [[nodiscard]] c10::IntArrayRef sizes(const View& view) const {
    return {pool_.data() + view.geometry, view.dimensions};
  }
  [[nodiscard]] c10::IntArrayRef strides(const View& view) const {
    return {pool_.data() + view.geometry + view.dimensions, view.dimensions};
  }

  /// A tensor over `storage` that looks as the recorded one did, outside autograd.
  [[nodiscard]] at::Tensor tensor(const View& view, c10::Storage storage) const;

  /// Whether some byte of their storage is shown by both views. Where that is hard to tell, as for views of different
  /// strides that interleave, the answer is yes.
  [[nodiscard]] bool overlap(const View& a, const View& b) const;
  /// Whether a tensor looks as the recorded one did, wherever its storage is.
  [[nodiscard]] bool shows(const View& view, const at::Tensor& tensor) const;

  [[nodiscard]] std::size_t size() const noexcept { return pool_.size(); }
  void truncate(std::size_t size) { pool_.resize(size); }

 private:
  std::vector<std::int64_t> pool_;
};

/// A hash of a plain tensor's sizes, strides and offset.
std::uint32_t layout_of(const at::Tensor& tensor);

/// Whether a tensor is geometry over a storage and nothing else. The others (sparse, quantized, nested, zero tensors,
/// tensors without a storage) are never dropped.
bool is_plain(const at::Tensor& tensor);
/// Whether one that is not plain cannot be written: a number that was made a tensor, zeros, what has no contents.
bool is_constant(const at::Tensor& tensor);

}  // namespace snug::record
