#pragma once

namespace snug::models {

/// How attention without dropout and masks of its own is computed.
enum class AttentionMethod : unsigned char {
  LibTorch,  ///< by LibTorch's own kernel
  Products,  ///< ops::attention: on CPUs faster in bf16, and not the same bits
};

}  // namespace snug::models
