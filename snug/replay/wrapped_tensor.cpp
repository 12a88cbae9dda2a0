#include "snug/replay/wrapped_tensor.h"

#include <atomic>

namespace snug::replay {
namespace {

std::atomic<Unwrap> s_unwrap = nullptr;

}  // namespace

void set_unwrap(Unwrap unwrap) noexcept { s_unwrap = unwrap; }

std::optional<WrappedTensor> unwrapped(const at::Tensor& tensor) {
  const Unwrap unwrap = s_unwrap;
  if (unwrap == nullptr || !tensor.key_set().has(c10::DispatchKey::Python)) return std::nullopt;
  return unwrap(tensor);
}

}  // namespace snug::replay
