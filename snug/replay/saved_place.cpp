#include "snug/replay/saved_place.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "snug/base/errors.h"

namespace snug::replay {
namespace {

std::optional<std::uint32_t> version_of(const at::Tensor& tensor) {
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  return counter.enabled() ? std::optional(counter.current_version()) : std::nullopt;
}

}  // namespace

SavedLook::SavedLook(const at::Tensor& tensor)
    : sizes(tensor.sizes().vec()),
      dtype(tensor.scalar_type()),
      device(tensor.device()),
      storage(tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr),
      version(version_of(tensor)) {}

bool SavedLook::same_metadata(const SavedLook& other) const {
  return sizes == other.sizes && dtype == other.dtype && device == other.device;
}

std::string SavedLook::metadata() const {
  return fmt::format("{} [{}] on {}", c10::toString(dtype), fmt::join(sizes, ", "), device.str());
}

void SavedPlace::fill(at::Tensor tensor) {
  filled_version_ = version_of(tensor).value_or(0);
  tensor_ = std::move(tensor);
}

void SavedPlace::check_unchanged(const at::Tensor& tensor) const {
  const auto now = version_of(tensor);
  if (!now || *now == filled_version_) return;
  throw Error(fmt::format(
      "checkpoint: a tensor that backward needs, {}, was modified in place after an operator saved it for its gradient "
      "(version {} then, {} now): the gradient would be wrong; modify a clone of it",
      look_.metadata(), filled_version_, *now));
}

at::Tensor SavedPlace::take() {
  at::Tensor tensor = std::exchange(tensor_, at::Tensor());
  check_unchanged(tensor);
  taken_ = c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr());
  return tensor;
}

at::Tensor SavedPlace::taken_before() const {
  auto alive = taken_.lock();
  if (!alive) return {};
  at::Tensor tensor(std::move(alive));
  check_unchanged(tensor);
  return tensor;
}

}  // namespace snug::replay
