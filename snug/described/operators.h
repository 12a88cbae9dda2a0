#pragma once

namespace snug::described {

/// Lets LibTorch's operators be called on the described device. Once, when all of them are there.
void install_operators();

}  // namespace snug::described
