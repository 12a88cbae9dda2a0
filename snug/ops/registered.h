#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

/// Of operators that are registered with LibTorch.
namespace snug::ops {

/// "snug::gated", whose registration has that signature. To be kept in a static: looking it up takes a lock.
template <class Signature>
c10::TypedOperatorHandle<Signature> operator_of(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

/// A schema's `Tensor?`, and a tensor that may be undefined.
using MaybeTensor = std::optional<at::Tensor>;
inline at::Tensor given(const MaybeTensor& tensor) { return tensor.value_or(at::Tensor()); }
inline MaybeTensor maybe(const at::Tensor& tensor) { return tensor.defined() ? MaybeTensor(tensor) : std::nullopt; }

/// In the backward pass of what has no second one. Throws Error where gradients of it are asked for.
void only_once(const char* operation);

}  // namespace snug::ops
