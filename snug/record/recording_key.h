#pragma once

#include <c10/core/DispatchKey.h>

namespace snug::record {

/// The key below autograd and autocast on which a boxed fallback sees every ATen operator. LibTorch reserves it for a
/// C++ fake tensor mode (pytorch#183776), which 2.11 to 2.15 do not have; see recording_key_is_taken() for when they
/// do.
inline constexpr c10::DispatchKey kRecordingKey = c10::DispatchKey::Fake;

}  // namespace snug::record
