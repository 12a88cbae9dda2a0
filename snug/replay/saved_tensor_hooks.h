#pragma once

namespace snug::replay {

/// Puts an autograd engine of ours in place, whose default saved-tensor hooks pack values of the recording tape. Done
/// when the library is loaded, which must come before the first backward pass; calling it again does nothing. In a
/// Python process, where torch must have been imported before, Python's engine goes on to run the backward passes.
void install_saved_tensor_hooks();

/// Throws Error, saying what stands there, when autograd's engine is not ours. Regions and sessions ask before they
/// record.
void require_saved_tensor_hooks();

}  // namespace snug::replay
