#pragma once

#include <filesystem>

#include "snug/state/stored_tensor.h"

namespace snug::state {

/// Whether it is a folder that torch.distributed.checkpoint has saved.
[[nodiscard]] bool is_torch_checkpoint(const std::filesystem::path& folder);

/// Opens such a folder, of any number of processes and in any division: each tensor is whole, and is put together when
/// it is read. What is no tensor is left out. Names are those of the state dicts that were saved: of {"model":
/// model.state_dict(), "optimizer": ...}, as of one module alone, those inside of "model"; with other keys, or none,
/// all there are, with dots between. Nothing of what Python has pickled there is run. Throws UsageError when there is
/// no such folder, it has been saved compressed, or has types that are not read; DamagedFile when it is not what the
/// format says, or a part of a tensor is missing.
StoredTensors open_torch_checkpoint(const std::filesystem::path& folder);

}  // namespace snug::state
