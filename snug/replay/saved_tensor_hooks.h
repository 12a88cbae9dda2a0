#pragma once

namespace snug::replay {

/// Puts an autograd engine of ours in place, whose default saved-tensor hooks pack values of the recording tape. Done
/// when the library is loaded, which must come before the first backward pass; calling it again does nothing. Not done
/// in a Python process, where the engine is Python's and brings hooks of its own.
void install_saved_tensor_hooks();

/// Throws Error, saying what stands there, when autograd's engine is not ours. Regions and sessions ask before they
/// record.
void require_saved_tensor_hooks();

}  // namespace snug::replay
