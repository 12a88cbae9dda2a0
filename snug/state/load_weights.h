#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "snug/state/stored_tensor.h"

namespace snug::state {

struct LoadOptions {
  /// The module's name for a name in the files; nullopt for what is of no use to it. By default the same.
  std::function<std::optional<std::string>(std::string_view name)> rename;
};

/// Copies stored tensors into the parameters and buffers of a module, cast to their types, one at a time; those that
/// are expanded from fewer numbers than they have elements get memory of their own (models::ShapesOnlyScope). Every one
/// must be there, once, in the same shape (of several names of one tensor one will do), and nothing else: otherwise
/// throws UsageError that lists all that is missing, left over or of another shape, and has written nothing. `from`
/// names the files in errors.
void load_weights(torch::nn::Module& module, const StoredTensors& tensors, std::string_view from,
                  const LoadOptions& options = {});

}  // namespace snug::state
