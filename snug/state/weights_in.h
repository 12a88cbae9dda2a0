#pragma once

#include <filesystem>

#include "snug/state/stored_tensor.h"

namespace snug::state {

/// The weights in the folder of a pretrained model: those of safetensors, or, where torch.distributed.checkpoint has
/// saved there, those. Throws as open_sharded_safetensors() and open_torch_checkpoint().
StoredTensors open_weights_in(const std::filesystem::path& folder);

}  // namespace snug::state
