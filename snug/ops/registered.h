#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <optional>

/// Of operators that are registered with LibTorch.
namespace snug::ops {

/// "snug::gated", whose registration has that signature. To be kept in a static: looking it up takes a lock.
template <class Signature>
c10::TypedOperatorHandle<Signature> operator_of(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

/// What the operator does in mixed precision, on any device.
template <class Function>
void in_mixed_precision(torch::Library& library, const char* name, Function* function) {
  for (const c10::DispatchKey key :
       {c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA, c10::DispatchKey::AutocastXPU,
        c10::DispatchKey::AutocastHPU, c10::DispatchKey::AutocastMPS, c10::DispatchKey::AutocastMAIA,
        c10::DispatchKey::AutocastPrivateUse1})
    library.impl(name, torch::dispatch(key, function));
}

/// A schema's `Tensor?`, and a tensor that may be undefined.
using MaybeTensor = std::optional<at::Tensor>;
inline at::Tensor given(const MaybeTensor& tensor) { return tensor.value_or(at::Tensor()); }
inline MaybeTensor maybe(const at::Tensor& tensor) { return tensor.defined() ? MaybeTensor(tensor) : std::nullopt; }

/// In the backward pass of what has no second one. Throws Error where gradients of it are asked for.
void only_once(const char* operation);

}  // namespace snug::ops
