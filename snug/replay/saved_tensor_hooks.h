#pragma once

namespace snug::replay {

/// Puts an autograd engine of ours in place, whose default saved-tensor hooks pack values of the recording tape. Done
/// when the library is loaded; calling it again does nothing. Must come before the first backward pass.
void install_saved_tensor_hooks();

}  // namespace snug::replay
