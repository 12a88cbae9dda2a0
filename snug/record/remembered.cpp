#include "snug/record/remembered.h"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <complex>

#include "snug/base/bytes.h"
#include "snug/record/unseen.h"

namespace snug::record {
namespace {

std::vector<std::byte> bytes_of(const ElementsOnHost& elements) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(elements.bytes()));
  const auto read = elements.read(0, elements.bytes(), bytes.data());
  if (read.data() != bytes.data()) std::ranges::copy(read, bytes.begin());
  return bytes;
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

struct Comparison {
  const ElementsOnHost& now;
  c10::ScalarType dtype;

  std::optional<std::string> operator()(const BlockHashes& then) const {
    const auto block = then.first_difference(BlockHashes::of(now));
    if (!block) return std::nullopt;
    const Bytes begin = static_cast<Bytes>(*block) * BlockHashes::kBlock;
    const Bytes end = std::min(begin + BlockHashes::kBlock, now.bytes());
    return fmt::format("elements {} to {}", begin / then.item_size, (end - 1) / then.item_size);
  }

  std::optional<std::string> operator()(const std::vector<std::byte>& then) const {
    const std::vector<std::byte> bytes = bytes_of(now);
    const auto [was, is] = std::ranges::mismatch(then, bytes);
    if (was == then.end()) return std::nullopt;
    const std::int64_t place = (was - then.begin()) / now.item_size();
    const std::int64_t first = place * now.item_size();
    return fmt::format("element [{}], which was {} and is {}", fmt::join(now.index_of(place), ", "),
                       text(then.data() + first, dtype), text(bytes.data() + first, dtype));
  }
};

}  // namespace

Remembered::Remembered(const at::Tensor& tensor, VerifyReplay how) {
  const ElementsOnHost elements(tensor);
  if (how == VerifyReplay::Values) {
    contents_ = bytes_of(elements);
  } else {
    contents_ = BlockHashes::of(elements);
  }
}

std::optional<std::string> Remembered::difference(const at::Tensor& now) const {
  const Unseen unseen;
  return std::visit(Comparison{ElementsOnHost(now), now.scalar_type()}, contents_);
}

}  // namespace snug::record
