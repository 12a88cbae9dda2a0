#pragma once

#include <c10/core/Allocator.h>

namespace snug::testing {

/// The host's memory that copies may use later than they are put: as at::empty(..., pin_memory) takes it.
at::Allocator& pinned_allocator();
/// Whether the address lies in such memory.
bool is_pinned(const void* data);

}  // namespace snug::testing
