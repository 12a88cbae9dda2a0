#include "snug/state/weights_in.h"

#include "snug/state/safetensors.h"
#include "snug/state/torch_checkpoint.h"

namespace snug::state {

StoredTensors open_weights_in(const std::filesystem::path& folder) {
  return is_torch_checkpoint(folder) ? open_torch_checkpoint(folder) : open_sharded_safetensors(folder);
}

}  // namespace snug::state
