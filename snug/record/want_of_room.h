#pragma once

#include <exception>

namespace snug::record {

/// Whether what was thrown says that there is no room: on the device, as front ends throw that, or elsewhere.
bool is_want_of_room(const std::exception_ptr& thrown);

}  // namespace snug::record
