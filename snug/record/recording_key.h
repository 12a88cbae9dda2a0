#pragma once

#include <c10/core/DispatchKey.h>

namespace snug::record {

/// The key below autograd and autocast on which a boxed fallback sees every ATen operator. LibTorch reserves it for a
/// C++ fake tensor mode (pytorch#183776); until that arrives nothing else uses it.
inline constexpr c10::DispatchKey kRecordingKey = c10::DispatchKey::Fake;

}  // namespace snug::record
