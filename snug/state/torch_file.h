#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace snug::state {

/// The tensor that torch.save() has written into these bytes, on the CPU, in memory of its own. Nothing of what Python
/// has pickled there is run. `name` of the file, for errors. Throws DamagedFile for what is none, or no dense tensor.
at::Tensor read_torch_tensor(std::span<const std::uint8_t> bytes, std::string_view name);

/// The type that Python knows as "torch.float32", ...; nullopt for others.
std::optional<at::ScalarType> scalar_type_named(std::string_view name);

}  // namespace snug::state
