#include "snug/record/remembered.h"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <complex>

#include "snug/base/bytes.h"
#include "snug/memory/owned_contents.h"
#include "snug/record/unseen.h"

namespace snug::record {
namespace {

std::vector<std::byte> bytes_of(const at::Tensor& tensor) {
  const memory::ContentsThere there(tensor);
  const at::Tensor dense = dense_on_cpu(tensor);
  const auto* data = static_cast<const std::byte*>(dense.const_data_ptr());
  return {data, data + dense.nbytes()};
}

/// One element, as a person would write it.
std::string text(const std::byte* element, c10::ScalarType dtype) {
  const at::Tensor one =
      at::from_blob(const_cast<std::byte*>(element), {}, at::TensorOptions(dtype)).clone();  // NOLINT: only read
  if (one.is_complex()) {
    const auto value = one.to(at::kComplexDouble).item<c10::complex<double>>();
    return fmt::format("{}{:+}i", value.real(), value.imag());
  }
  if (one.is_floating_point()) return fmt::format("{}", one.to(at::kDouble).item<double>());
  return fmt::format("{}", one.to(at::kLong).item<std::int64_t>());
}

/// The index of the element that lies `place` elements behind the first one.
std::vector<std::int64_t> index_at(const at::Tensor& dense, std::int64_t place) {
  const at::Tensor order = at::arange(dense.numel(), at::kLong).as_strided(dense.sizes(), dense.strides());
  const at::Tensor index = order.eq(place).nonzero().flatten();
  return {index.const_data_ptr<std::int64_t>(), index.const_data_ptr<std::int64_t>() + index.numel()};
}

struct Comparison {
  at::Tensor now;  // dense, on the CPU

  std::optional<std::string> operator()(const BlockHashes& then) const {
    const auto block = then.first_difference(BlockHashes::of(now));
    if (!block) return std::nullopt;
    const Bytes begin = static_cast<Bytes>(*block) * BlockHashes::kBlock;
    const Bytes end = std::min(begin + BlockHashes::kBlock, static_cast<Bytes>(now.nbytes()));
    return fmt::format("elements {} to {}", begin / then.item_size, (end - 1) / then.item_size);
  }

  std::optional<std::string> operator()(const std::vector<std::byte>& then) const {
    const auto* data = static_cast<const std::byte*>(now.const_data_ptr());
    const auto [was, is] = std::mismatch(then.begin(), then.end(), data, data + now.nbytes());
    if (was == then.end()) return std::nullopt;
    const auto size = static_cast<std::int64_t>(now.itemsize());
    const std::int64_t place = (was - then.begin()) / size;
    return fmt::format("element [{}], which was {} and is {}", fmt::join(index_at(now, place), ", "),
                       text(then.data() + place * size, now.scalar_type()),
                       text(data + place * size, now.scalar_type()));
  }
};

}  // namespace

Remembered::Remembered(const at::Tensor& tensor, VerifyReplay how) {
  if (how == VerifyReplay::Hashes) {
    contents_ = BlockHashes::of(tensor);
  } else {
    contents_ = bytes_of(tensor);
  }
}

std::optional<std::string> Remembered::difference(const at::Tensor& now) const {
  const Unseen unseen;
  const memory::ContentsThere there(now);
  return std::visit(Comparison{dense_on_cpu(now)}, contents_);
}

}  // namespace snug::record
